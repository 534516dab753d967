"""One run of a model with gradients: how its scores are computed from the image.

    image ... layer outputs, attention ... scores
          <-- gradients of a random mixture of the scores

A gradient of exactly zero means that no path leads to the scores. So an attention layer is read if
the scores have a gradient with respect to it, and a token if its row of the last such layer has:

    weights [h n m] @ values -> tokens [n c] -> MLP, norm -> pool -> scores
            rows that have a gradient           gradients in proportion to the weights of the pool
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from visattn.blocks.tap import Tap
from visattn.recording.attention_call import AttentionCall
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.interception import (
    attention_calls,
    in_this_run,
    probing,
)
from visattn.recording.model_info import FeatureLayer, ReadRows
from visattn.recording.outputs import (
    OutputLayout,
    class_scores,
    detect_output_layout,
    output_tensors,
)
from visattn.recording.places import CellStrides
from visattn.recording.probe import ObservedTokens, Probe
from visattn.recording.score_evidence import declared_class_counts, reaches

_PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_IMAGE_VECTORS = ("image_embeds", "pooler_output")
_DETACHING = (Tensor.detach, torch.detach)
_NUMBERS = (Tensor.__float__, Tensor.__int__, Tensor.__complex__, Tensor.__index__, Tensor.numpy)
_PARALLEL = 0.999  # cosine of gradients above which tokens are read by the same linear weights
_ALIKE = 1.5  # ratio up to which shares count as equal, since they are of one direction only
_EQUAL = 1.01  # ratio up to which the weights of one linear pooling count as equal
_UNKEPT = frozenset({*_DETACHING, *_NUMBERS, torch._C._set_grad_enabled})  # noqa: SLF001


class GradientsKept(TorchFunctionMode):
    """Keeps in the graph what a model detaches or computes without gradients.

    Args:
        zeros: Weights that are all zero, such as those of an untrained head; random numbers replace
            them.
    """

    def __init__(self, zeros: Iterable[Tensor] = ()) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(2)
        self.used = False
        self.instead: dict[int, Any] = {
            id(weight): torch.randn(weight.shape, generator=random).to(weight) for weight in zeros
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and not self.instead and func not in _UNKEPT:
            return func(*args, **kwargs)
        detaches = func in _DETACHING
        if detaches or not torch.is_grad_enabled():
            tensors = chain(args, kwargs.values())
            self.used |= any(isinstance(each, Tensor) and each.requires_grad for each in tensors)
        if detaches:
            return args[0]
        if func is torch._C._set_grad_enabled:  # noqa: SLF001
            return func(*args)
        if func in _NUMBERS:  # torch warns about tensors that the model had detached
            args = (args[0].detach(), *args[1:])
        if self.instead:
            args = tuple(self.instead.get(id(each), each) for each in args)
            kwargs = {name: self.instead.get(id(each), each) for name, each in kwargs.items()}
        with torch.inference_mode(mode=False), torch.enable_grad():
            return func(*args, **kwargs)


@dataclass(eq=False)
class LayerOutput:
    """Output of a module that runs once.

    Args:
        edge: Its tensor in the autograd graph.
        source: The input of the module in the graph.
        version: Version counter of the tensor when the module returned it.
        layer: Its feature layer; None if it has no positions, or they were not needed.
    """

    site: str
    module: nn.Module
    edge: GradientEdge
    source: GradientEdge | None
    tensor: Tensor
    version: int
    layer: FeatureLayer | None = None

    @property
    def unmodified(self) -> bool:
        """Whether no in-place operation overwrote it."""
        return self.tensor._version == self.version  # noqa: SLF001


@dataclass(eq=False)
class TracedCall:
    """One attention call.

    Args:
        site: Qualified name of its module.
        index: Number of earlier calls of the module.
        edge: A tensor that is computed row by row from the attention weights.
        axis: Its axis of queries, counted from the end; None if it has none, as after pooling.
        num_outputs: Number of layer outputs before it.
    """

    site: str
    index: int
    edge: GradientEdge
    axis: int | None
    num_outputs: int


@dataclass(eq=False)
class Trace:
    """What one run measured.

    Args:
        outputs: Outputs of modules that run once, in order.
        scores: The scores, or other outputs if the model has none; () if they have no gradient.
        vectors: The scores, or else the embedding of the image; () if there are neither.
        layout: Where the class scores are in the output.
        detached: Whether the model detaches a tensor that depends on the image.
        attends: Whether there is attention, of a kind that can be recorded or not.
        whole: Whether its first convolution got the unmodified image.
        strides: Strides of the feature maps.
    """

    image: Tensor
    outputs: list[LayerOutput] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    scores: Sequence[Tensor] = ()
    vectors: Sequence[Tensor] = ()
    layout: OutputLayout = field(default_factory=OutputLayout)
    detached: bool = False
    attends: bool = False
    whole: bool | None = None
    strides: CellStrides = field(default_factory=CellStrides)

    def place(self, probe: Probe) -> None:
        """Set the feature layers of the outputs."""
        for output in self.outputs:
            output.layer = probe.once(output.site)

    def add_call(self, site: str, index: int, tensor: Tensor, axis: int | None) -> None:
        """Keep an attention call."""
        if tensor.grad_fn is not None:
            edge = get_gradient_edge(tensor)
            self.calls.append(TracedCall(site, index, edge, axis, len(self.outputs)))

    def bypassed(self, *edges: GradientEdge) -> bool:
        """Whether a path from the image to the scores avoids some tensors."""
        scores = map(get_gradient_edge, self.scores)
        return reaches(scores, get_gradient_edge(self.image), edges)


def gradients_of(scores: Sequence[Tensor], edges: Sequence[GradientEdge]) -> list[Tensor | None]:
    """Return gradients of a random mixture of scores."""
    if not edges or not scores:
        return [None] * len(edges)
    random = torch.Generator().manual_seed(1)
    mixture = [torch.randn(each.shape, generator=random).to(each) for each in scores]
    return list(
        torch.autograd.grad(
            list(scores), list(edges), mixture, retain_graph=True, allow_unused=True
        )
    )


@dataclass(frozen=True, eq=False)
class ScoreTracer:
    """Runs a model with gradients.

    Args:
        forward: Calls the model on normalized images.
        num_classes: Number of classes, if it decides which of several outputs the scores are.
    """

    model: nn.Module
    forward: Callable[[Tensor], Any]
    num_classes: int | None = None

    def kept(self, image: Tensor, *, unzeroed: bool = False) -> Trace:
        """Run the model with all gradients kept, and random numbers for all-zero weights."""
        weights = self.model.parameters() if unzeroed else ()
        mode = GradientsKept(weight for weight in weights if not bool(weight.any()))
        with mode:
            trace = self.run(image)
        trace.detached = mode.used
        return trace

    def run(self, image: Tensor) -> Trace:
        """Run the unmodified model on one image."""
        trace, ran = Trace(with_grad(image)), Counter[str]()

        sites = {module: site for site, module in self.model.named_modules()}

        def on_output(module: nn.Module, args: Any, output: Any) -> None:
            ran[site := sites[module]] += 1
            with torch._C.DisableTorchFunction():  # noqa: SLF001 - nothing that the model computes
                if trace.whole is None and isinstance(module, nn.Conv2d) and args:
                    trace.whole = torch.equal(args[0], trace.image)
                tensor = output[0] if isinstance(output, tuple) and output else output
                # pass-through layers would hide the layer that computed the tensor
                if isinstance(module, _PASS_THROUGH) or not isinstance(tensor, Tensor):
                    return
                if tensor.grad_fn is not None:
                    edge, version = get_gradient_edge(tensor), tensor._version  # noqa: SLF001
                    given = args and isinstance(args[0], Tensor) and args[0].grad_fn is not None
                    source = get_gradient_edge(args[0]) if given else None
                    output = LayerOutput(site, module, edge, source, tensor, version)
                    trace.outputs.append(output)

        def on_call(call: AttentionCall) -> None:
            trace.attends = True
            if not call.unsupported:
                trace.add_call(call.site, call.index, *call.traced)

        with ExitStack() as stack:
            for tap, site in sites.items():
                if not isinstance(tap, Tap):
                    continue
                trace.attends |= tap.kind in ("tokens", "queries") or bool(tap.unsupported)
                if tap.kind == "tokens":
                    around = self.model.get_submodule(site.rpartition(".")[0])
                    hook = in_this_run(partial(_on_tap, site, trace))
                    stack.callback(around.register_forward_hook(hook).remove)
            stack.enter_context(attention_calls(self.model, on_call))
            stack.enter_context(trace.strides.watching(self.model))
            hook = in_this_run(on_output)
            for module in sites:
                stack.callback(module.register_forward_hook(hook).remove)
            output = self.forward(trace.image.clone())  # the model may modify it in place
        once = [ran[each.site] == 1 for each in trace.outputs]
        for call in trace.calls:
            call.num_outputs = sum(once[: call.num_outputs])
        trace.outputs = [each for each, alone in zip(trace.outputs, once, strict=True) if alone]
        declared = declared_class_counts(sites)
        trace.layout = detect_output_layout(output, len(image), self.num_classes, declared)
        trace.scores, trace.vectors = (
            [e for e in output_tensors(part) if e.requires_grad and e.is_floating_point()]
            for part in _scores_in(output, trace.layout)
        )
        return trace


def _on_tap(site: str, trace: Trace, _: nn.Module, __: Any, output: Any) -> None:
    tensor = output[0] if isinstance(output, tuple) else output
    index = sum(call.site == site for call in trace.calls)
    trace.add_call(site, index, tensor, -2 if tensor.ndim == 3 else None)


def _scores_in(output: Any, layout: OutputLayout) -> tuple[Any, Any]:
    """Return the scores in an output, or all of it, and what represents the image, or ().

    The latter is class scores, scores `[b, k, y, x]` of cells, or the embedding of an encoder.
    """
    if not layout.error:
        scores = class_scores(output, layout=layout)
        return scores, scores
    parts = output if isinstance(output, dict) else {}
    output = parts.get("out", parts.get("logits", output))
    if isinstance(output, Tensor):
        return output, output if output.ndim == 4 else ()
    vectors = (parts[name] for name in _IMAGE_VECTORS if name in parts)
    return output, next((each for each in vectors if isinstance(each, Tensor)), ())


@dataclass(frozen=True, eq=False)
class Reading:
    """What the scores read of the attention of a model.

    Args:
        unread: Names of attention layers on which no score depends.
        rows: Tokens that are read after the last layer that is read; None if unknown.
        parallel: Names of two layers that are read, of which the later is not computed from the
            earlier; () if there are none.
    """

    unread: tuple[str, ...] = ()
    rows: ReadRows | None = None
    parallel: tuple[str, ...] = ()


def measured_reading(
    tracer: ScoreTracer, image: Tensor, kept: Trace | None, probe: Probe
) -> Reading | None:
    """Return what the scores read of attention; None if they depend on none.

    Args:
        kept: A run on the image, if there was one.
        probe: Positions of the tokens of attention.
    """
    if not probe.layouts:
        return None
    with frozen(tracer.model), probing():
        reading = read_attention(kept or tracer.kept(image), probe)
        if reading is None:
            trace = tracer.kept(image, unzeroed=True)
            reading = read_attention(trace, probe)
            if reading is None and trace.vectors:
                reading = Reading(tuple(dict.fromkeys(call.site for call in trace.calls)))
        return reading


def read_attention(trace: Trace, probe: Probe) -> Reading | None:
    """Return what the scores read of attention; None if they depend on none."""
    gradients = gradients_of(trace.vectors, [call.edge for call in trace.calls])
    pairs = zip(trace.calls, gradients, strict=True)
    read = {call: each for call, each in pairs if each is not None and bool(each.any())}
    if not read:
        return None
    sites = {call.site for call in read}
    unread = tuple(dict.fromkeys(call.site for call in trace.calls if call.site not in sites))
    known = [(call, probe.layout_of(call.site, call.index)) for call in read]
    placed = [(call, each) for call, each in known if isinstance(each, ObservedTokens)]
    if not placed:
        return Reading(unread)
    reading = Reading(unread, parallel=_parallel([call for call, _ in placed]))
    call, layout = placed[-1]
    if layout.layer.single_query:
        return replace(reading, rows=ReadRows(pool=True))
    rows = _read_rows(read[call], call, layout)
    # a later layer that cannot be recorded mixes patches and other tokens again
    if rows is None or (layout.layer.prefix_tokens and call is not known[-1][0]):
        return reading
    shares, linear = _shares(trace, call, rows, layout)
    return replace(reading, rows=_as_read_rows(shares, layout, linear=linear))


def _parallel(calls: Sequence[TracedCall]) -> tuple[str, ...]:
    """Return two consecutive layers of which the later is not computed from the earlier."""
    for call, following in pairwise(calls):
        if not reaches([following.edge], call.edge):
            return call.site, following.site
    return ()


def _read_rows(
    gradient: Tensor, call: TracedCall, layout: ObservedTokens
) -> Bool[Tensor, " n"] | None:
    """Return the tokens for which a gradient of attention is nonzero; None if unknown."""
    rows, columns = layout.layer.grid
    count = len(layout.layer.prefix_tokens) + rows * columns
    nonzero = gradient.ne(0)
    if call.axis is None:  # cells [b c y x]
        nonzero = nonzero.flatten(2) if nonzero.ndim == 4 else nonzero
    nonzero = nonzero.movedim(-1 if call.axis is None else call.axis, -1)
    if layout.windows is None or nonzero.shape[0] != len(layout.windows):
        is_read = nonzero.flatten(0, -2).any(0)
        return is_read if len(is_read) == count else None
    is_read = nonzero.flatten(1, -2).any(1)
    windows = layout.windows.to(is_read.device)
    occupied = windows >= 0
    dense = is_read.new_zeros(count)
    dense[windows[occupied]] = is_read[occupied]
    return dense


def _shares(
    trace: Trace, call: TracedCall, rows: Bool[Tensor, " n"], layout: ObservedTokens
) -> tuple[Float[Tensor, " n"], bool]:
    """Return the share of each row, and whether these are linear weights."""
    grid, num_prefix = layout.layer.grid, len(layout.layer.prefix_tokens)
    # Tokens are pooled from the last output after attention that still has all of them: after MLP
    # and norm, which change the size of gradients.
    if int(rows.sum()) > 1:
        edges = [output.edge for output in trace.outputs[call.num_outputs :]]
        for gradient in reversed(gradients_of(trace.vectors, edges)):
            tokens = None if gradient is None else _as_tokens(gradient, grid, num_prefix)
            if tokens is not None and torch.equal(tokens.ne(0).any(-1), rows):
                return shares_of_rows(tokens, num_prefix)
    return rows.float() / rows.sum(), int(rows.sum()) == 1


def _as_tokens(
    gradient: Tensor, grid: tuple[int, int], num_prefix: int
) -> Float[Tensor, "n c"] | None:
    """Return the gradient of each token of a grid; None if the tensor has other axes."""
    axes = tuple(gradient.shape[1:])
    if gradient.ndim == 3:
        return gradient[0] if axes[0] == num_prefix + grid[0] * grid[1] else None
    if gradient.ndim != 4 or num_prefix:
        return None
    if axes[:2] == grid:
        return gradient[0].flatten(0, 1)
    return gradient[0].flatten(1).mT if axes[1:] == grid else None


def shares_of_rows(
    gradients: Float[Tensor, "n c"], num_prefix_tokens: int
) -> tuple[Float[Tensor, " n"], bool]:
    """Return the share of each token in what is read, and whether shares are linear weights.

    Tokens with parallel gradients are read with the same linear weights, up to a factor, as in a
    mean; their shares are proportional to these factors. If the gradients of patches are not
    parallel (maximum, power mean), all patches share the gradient of their sum. Tokens read with
    other weights (a class token next to a mean of patches) have shares proportional to the norms of
    their gradients. As these are of one direction of the scores only, norms up to 1.5 times as
    large count as equal. Gradients are those of a random sum of the scores.

    Example:
        >>> mean, other = torch.tensor([0.3, 0.1, 0.2]), torch.tensor([-1.0, 2.5, 1.0])
        >>> shares_of_rows(torch.stack([mean, mean, mean]), 1)
        (tensor([0.3333, 0.3333, 0.3333]), True)
        >>> shares_of_rows(torch.stack([4 * other, other, other, other]), 1)
        (tensor([0.5714, 0.1429, 0.1429, 0.1429]), True)
        >>> shares_of_rows(torch.stack([8 * other, mean, mean, torch.zeros(3)]), 1)
        (tensor([0.9685, 0.0158, 0.0158, 0.0000]), True)
    """
    gradients = gradients.detach().double().nan_to_num()
    norms = gradients.norm(dim=1)
    prefix, cells = norms[:num_prefix_tokens], norms[num_prefix_tokens:]
    parallel = True
    if bool(cells.any()):
        patches = gradients[num_prefix_tokens:]
        cosines = torch.cosine_similarity(gradients, patches[cells.argmax()][None], eps=1e-300)
        same = cosines.abs() > _PARALLEL
        parallel = bool(same[num_prefix_tokens:][cells > 0].all())
        ratio = float(cells.amax() / cells[cells > 0].amin())
        if not parallel:  # also those that are not the maximum on this image
            cells = torch.full_like(cells, float(patches.sum(0).norm()) / len(cells))
        elif ratio <= _EQUAL:  # equal up to rounding error
            cells = (cells > 0) * cells.sum() / (cells > 0).sum()
        limit = torch.where(same[:num_prefix_tokens], _EQUAL, _ALIKE) if parallel else _ALIKE
        for value in (cells[cells > 0].mean(), cells.sum()):
            alike = (prefix < limit * value) & (prefix * limit > value)
            prefix = torch.where(alike, value, prefix)
    elif bool(prefix.any()) and float(prefix.amax() / prefix[prefix > 0].amin()) < _ALIKE:
        prefix = (prefix > 0).double()
    shares = torch.cat((prefix, cells))
    return (shares / shares.sum()).float(), parallel


def _as_read_rows(
    weights: Float[Tensor, " n"], layout: ObservedTokens, *, linear: bool
) -> ReadRows:
    """Return the shares of the tokens of a layer by kind."""
    kinds = layout.layer.prefix_tokens
    prefix, cells = weights[: len(kinds)], weights[len(kinds) :]
    total = float(cells.sum())
    grid: tuple[tuple[float, ...], ...] = ()
    if float(cells.amax() - cells.amin()) > 1e-6 * max(total, 1e-12):
        grid = tuple(map(tuple, (cells / total).view(layout.layer.grid).tolist()))
    return ReadRows(tuple(prefix.tolist()), total, grid, kinds=kinds, linear=linear)
