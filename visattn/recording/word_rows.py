"""Rows of words: attention of generated tokens, from one recorded run."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import AttentionInterceptor, sums_to_one
from visattn.recording.module_calls import ModuleCall, ModuleCallStack

_TEXT = frozenset({"input_ids", "inputs_embeds", "decoder_input_ids"})


def vision_towers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the vision towers of a model by name: parts that are models themselves, without text.

    Example:
        >>> vision_towers(torch.nn.Linear(1, 1))
        {}
    """
    return {
        name: module
        for name, module in model.named_modules()
        if name and hasattr(module, "main_input_name") and not _takes_text(module)
    }


def _takes_text(module: nn.Module) -> bool:
    parameters = inspect.signature(module.forward).parameters
    if all(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in parameters.values()
    ):
        return any(_takes_text(child) for child in module.children())  # a wrapper of another
    return not _TEXT.isdisjoint(parameters)


def call_site(call: ModuleCall) -> str:
    """Return the name of a module call; `layer#2` is the second call of `layer`."""
    return call.site if call.index == 0 else f"{call.site}#{call.index + 1}"


class WordRows:
    """Records the last rows of attention layers, and verifies them.

    Args:
        model: The model.
        sites: Attention layers to record, with the number of last query rows to record of each;
            None for all rows.
        keep: Receives the weights of a layer, `[b h r m]`, and returns what is kept of them.
        differentiable: Whether the model continues with the recorded weights, so that they are
            part of the graph; they are kept as `[h n m]`, without `keep`.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[str, int | None],
        *,
        keep: Callable[[str, Tensor], Tensor],
        differentiable: bool = False,
    ) -> None:
        self.model = model
        self.sites = sites
        self.keep = keep
        self.differentiable = differentiable
        self.calls = ModuleCallStack()
        self.rows: dict[str, Tensor] = {}
        self.unsupported: dict[str, str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the block."""
        replace = self.replace_weights if self.differentiable else None
        with (
            self.calls.hooked(self.model),
            AttentionInterceptor(self.calls, self, replace),
        ):
            yield

    def on_unsupported(self, call: ModuleCall, reason: str) -> None:
        """Store why a layer cannot be recorded."""
        if call_site(call) in self.sites:
            self.unsupported.setdefault(call_site(call), reason)

    def on_attention(self, call: ModuleCall, attention: AttentionCall) -> None:
        """Record the requested rows."""
        site = call_site(call)
        if site not in self.sites:
            return
        num_rows = self.sites[site]
        first = 0 if num_rows is None else attention.shape[2] - num_rows
        queries = slice(None) if first == 0 else slice(first, attention.shape[2])
        # autocast would round the products that are compared
        with torch.no_grad(), torch.autocast(_device(attention), enabled=False):
            attention = _as_computed(attention)
            weights = attention.compute_weights(slice(None), queries)
            if not sums_to_one(weights):
                self.on_unsupported(call, "its weights do not sum to 1")
                return
            deviation = attention.deviation(weights, slice(None), queries)
            tolerance = row_tolerance(weights, largest_score(attention, queries))
            if deviation > tolerance:
                raise ValueError(
                    f"the recorded weights of {site} times its values must equal its output, but "
                    f"they differ by {deviation:.1e}, more than rounding explains ({tolerance:.1e})"
                    "; please report this model"
                )
            self.rows[site] = self.keep(site, _heads_as_axis(weights))

    def replace_weights(self, call: ModuleCall, attention: AttentionCall) -> Tensor | None:
        """Record the weights, and return those that the model continues with."""
        site = call_site(call)
        if site not in self.sites:
            return None
        weights = attention.compute_weights(slice(None), slice(None))
        if self.differentiable and not weights.requires_grad:  # no pixel reaches this layer
            weights = weights.detach().requires_grad_()
        if not self.differentiable:
            self.rows[site] = self.keep(site, _heads_as_axis(weights))
            return weights
        self.rows[site] = _heads_as_axis(weights)[0]
        # the model continues from this node of the graph
        return self.rows[site].reshape(weights.shape)


def _heads_as_axis(weights: Tensor) -> Tensor:
    """Return weights of one caption as `[1 h r m]`; bmm has the heads on the batch axis."""
    return weights.transpose(0, 1) if weights.shape[1] == 1 else weights


def _device(attention: AttentionCall) -> str:
    known = (attention.queries, attention.weights, attention.values)
    return next((tensor.device.type for tensor in known if tensor is not None), "cpu")


def _as_computed(attention: AttentionCall) -> AttentionCall:
    """Return the call with the tensors that its kernel read: autocast converts them in there."""
    output = attention.output
    if attention.queries is None or output is None or attention.queries.dtype == output.dtype:
        return attention
    queries, keys, values = (
        None if tensor is None else tensor.to(output.dtype)
        for tensor in (attention.queries, attention.keys, attention.values)
    )
    return replace(attention, queries=queries, keys=keys, values=values)


def largest_score(attention: AttentionCall, queries: slice) -> float:
    """Return the largest magnitude of the scaled dot products of some queries; 0 if unknown."""
    if attention.queries is None or attention.keys is None:
        return 0.0
    rows = attention.queries[:, :, queries].float()
    scale = rows.shape[-1] ** -0.5 if attention.scale is None else attention.scale
    return float((rows @ attention.keys.float().mT).abs().max()) * abs(scale)


def row_tolerance(weights: Tensor, score: float = 0.0) -> float:
    """Return by how much weights times values may differ from the output of the layer.

    A score is rounded in proportion to its size, and its weight changes by as much.
    """
    rounding = torch.finfo(torch.float32).eps
    if weights.dtype not in (torch.float32, torch.float64):
        return 2e-2 + 4 * rounding * score
    if weights.device.type == "cpu":
        return 2e-6 + 4 * rounding * score
    return 2e-3 + 5e-4 * score  # accelerators may use TF32
