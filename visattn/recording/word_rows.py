"""Rows of words: attention of generated tokens, from one recorded run."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import AttentionInterceptor, sums_to_one
from visattn.recording.module_calls import ModuleCall, ModuleCallStack

_TEXT = frozenset({"input_ids", "inputs_embeds", "decoder_input_ids"})


@dataclass(frozen=True, eq=False)
class _Call:
    arguments: dict[str, Any]
    output: Any


class ReusedOutputs:
    """Keeps what the vision towers of a model returned, for a second run on the same images.

    The output of a tower (`vision_towers`) is reused if it is called with equal arguments, or with
    those of one image of the batch; otherwise it runs again.

    Example:
        >>> class Tower(torch.nn.Module):
        ...     main_input_name = "pixel_values"
        ...     def forward(self, pixel_values):
        ...         print("runs")
        ...         return 2 * pixel_values
        >>> model = torch.nn.Sequential(Tower())
        >>> kept = ReusedOutputs(model)
        >>> with kept.collecting():
        ...     output = model(torch.tensor([1.0, 3.0]))
        runs
        >>> with kept.reusing():
        ...     model(torch.tensor([3.0]))
        tensor([6.])
    """

    def __init__(self, model: nn.Module) -> None:
        self.towers = vision_towers(model)
        self.calls: dict[str, _Call] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the output of the first call of each tower inside the block."""
        with ExitStack() as hooks:
            for name, module in self.towers.items():
                handle = module.register_forward_hook(self._keep(name), with_kwargs=True)
                hooks.callback(handle.remove)
            yield

    def _keep(self, name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            if name not in self.calls:
                arguments = _named(module.forward, args, kwargs)
                self.calls[name] = _Call(arguments, _map_tensors(output, Tensor.clone))

        return hook

    @contextmanager
    def reusing(self, except_sites: Iterable[str] = ()) -> Iterator[None]:
        """Return the kept outputs inside the block instead of running the towers.

        Those of `except_sites` run, and towers around them.
        """
        sites = tuple(except_sites)
        with ExitStack() as restored:
            for name, call in self.calls.items():
                if any(f"{site}.".startswith(f"{name}.") for site in sites):
                    continue
                module = self.towers[name]
                restored.callback(_restore, module, vars(module).get("forward"))
                module.forward = _reusing_forward(module.forward, call)
            yield


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


def _restore(module: nn.Module, forward: Any) -> None:
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def _reusing_forward(forward: Callable[..., Any], call: _Call) -> Callable[..., Any]:
    def reused(*args: Any, **kwargs: Any) -> Any:
        if (rows := _rows(call.arguments, _named(forward, args, kwargs))) is None:
            return forward(*args, **kwargs)
        begin, end, total = rows
        if total == end - begin:
            return _map_tensors(call.output, Tensor.clone)
        if any(not tensor.ndim or len(tensor) != total for tensor in _tensors(call.output)):
            return forward(*args, **kwargs)
        return _map_tensors(call.output, lambda tensor: tensor[begin:end].clone())

    return reused


def _rows(kept: Mapping[str, Any], called: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return the rows of the kept batch that equal another one, and the size of the kept batch."""
    pairs = list(zip(_tensors(kept), _tensors(called), strict=False))
    if not pairs or not _same_structure(kept, called) or not all(old.ndim for old, _ in pairs):
        return None
    total = len(pairs[0][0])
    count = len(pairs[0][1])
    if all(_equal(old, new) for old, new in pairs):
        return 0, total, total
    if not count or any((len(old), len(new)) != (total, count) for old, new in pairs):
        return None
    for begin in range(0, total - count + 1, count):
        if all(_equal(old[begin : begin + count], new) for old, new in pairs):
            return begin, begin + count, total
    return None


def _named(forward: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name, without those that are None or False, as if they were left out."""
    named = {**dict(zip(inspect.signature(forward).parameters, args, strict=False)), **kwargs}
    return {
        name: value
        for name, value in sorted(named.items())
        if value is not None and value is not False
    }


def _equal(first: Tensor, second: Tensor) -> bool:
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and first.device == second.device
        and bool((first == second).all())
    )


def _same_structure(first: Any, second: Any) -> bool:
    """Whether two arguments are equal but for the content of their tensors."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return isinstance(first, Tensor) and isinstance(second, Tensor)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        same = list(first) == list(second)
        return same and all(_same_structure(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(_same_structure, first, second))
    return type(first) is type(second) and bool(first == second)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable):
        return []
    return [tensor for item in parts for tensor in _tensors(item)]


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested value with changed tensors; outputs of transformers keep their class."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: _map_tensors(item, change) for key, item in value.items()}
        return cast("Any", type(value))(**changed)
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(item, change) for item in value)
    return value


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
