"""Attention layers that the scores of a model read, and the rows that they read after the last."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.recording.attention_call import AttentionCall
from visattn.recording.gradient_graph import Edge, GradientGraph, gradient_edge
from visattn.recording.interception import attention_calls, in_this_run, tapped_attention
from visattn.recording.model_info import ReadRows
from visattn.recording.probe import Layouts, ObservedTokens, layout_of

Gradients = Callable[[Sequence[Edge]], Sequence[Tensor | None]]
_PARALLEL = 0.999  # cosine of gradients above which tokens are read by the same linear weights
_ALIKE = 1.5  # ratio of shares up to which they count as equal: they are from one direction
_EQUAL = 1.01  # ratio up to which weights of one linear mean are equal


@dataclass(frozen=True, eq=False)
class TracedCall:
    """One attention call in the autograd graph.

    Args:
        site: Qualified name of its module.
        index: Number of earlier calls of the module.
        edge: Of a tensor, computed row by row from the attention weights.
        axis: Its axis of queries, counted from the end; None if it has none, as after pooling.
        num_outputs: Number of module outputs that were recorded before.
    """

    site: str
    index: int
    edge: Edge
    axis: int | None
    num_outputs: int


@dataclass(frozen=True, eq=False)
class Reading:
    """What the scores read.

    Args:
        unread: Names of attention layers on which no score depends.
        rows: What is read after the last layer that is; None if that could not be determined.
        ambiguous: Whether the scores read some of the patches, which may depend on the image.
        parallel: Two layers that are read of which the later is not computed from the earlier; ()
            if there are none.
    """

    unread: tuple[str, ...] = ()
    rows: ReadRows | None = None
    ambiguous: bool = False
    parallel: tuple[str, ...] = ()


_NUMBERS = (Tensor.__float__, Tensor.__int__, Tensor.__complex__, Tensor.__index__)


class GradientEverywhere(TorchFunctionMode):
    """Notes what a model detaches, or computes without gradients, or keeps it in the graph."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self.keep = keep
        self.used = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        detaches = func in (Tensor.detach, torch.detach)
        if self.keep:
            if detaches:
                return args[0]
            if func is torch._C._set_grad_enabled and args and not args[0]:  # noqa: SLF001
                return None
            if func in _NUMBERS and isinstance(args[0], Tensor):
                args = (args[0].detach(), *args[1:])  # torch warns of what the model detached
        elif detaches or not torch.is_grad_enabled():
            self.used = self.used or any(
                isinstance(arg, Tensor) and arg.requires_grad for arg in args
            )
        return func(*args, **(kwargs or {}))


class AttentionTracer:
    """Collects the attention calls of a run with gradients."""

    def __init__(self, model: nn.Module, num_outputs: Callable[[], int]) -> None:
        self.model = model
        self.num_outputs = num_outputs
        self.calls: list[TracedCall] = []

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Collect calls inside the block."""
        with ExitStack() as stack:
            for site, attention in tapped_attention(self.model):
                hook = in_this_run(self._output_hook(site))
                stack.callback(attention.register_forward_hook(hook).remove)
            stack.enter_context(attention_calls(self.model, self._on_call))
            yield

    def _on_call(self, call: AttentionCall) -> None:
        """Store the tensor of an attention call."""
        if not call.unsupported:
            self._add(call.site, call.index, *call.traced)

    def _output_hook(self, site: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            index = sum(call.site == site for call in self.calls)
            if isinstance(tensor, Tensor):
                self._add(site, index, tensor, -2 if tensor.ndim == 3 else None)

        return hook

    def _add(self, site: str, index: int, tensor: Tensor, axis: int | None) -> None:
        if tensor.grad_fn is not None:
            edge = gradient_edge(tensor)
            self.calls.append(TracedCall(site, index, edge, axis, self.num_outputs()))


@dataclass(eq=False)
class RowReader:
    """Determines what the scores read, from gradients of a run."""

    calls: Sequence[TracedCall]
    outputs: Sequence[Edge]
    graph: GradientGraph
    gradients: Gradients
    layouts: Layouts

    def read(self) -> Reading | None:
        """Return what the scores read; None if they depend on no attention."""
        gradients = self.gradients([call.edge for call in self.calls])
        sites = {call.site: False for call in self.calls}
        last = None
        read: list[tuple[TracedCall, ObservedTokens, Tensor]] = []
        # A layer is read if the scores have a gradient there, a token if its row of the last such
        # layer has: a zero is exact, since nothing leads from the scores to it.
        for call, gradient in zip(self.calls, gradients, strict=True):
            if gradient is not None and bool(gradient.ne(0).any()):
                sites[call.site] = True
                last = call
                layout = layout_of(self.layouts, call.site, call.index)
                if isinstance(layout, ObservedTokens):
                    read.append((call, layout, gradient))
        if not read:
            return None
        unread = tuple(site for site, is_read in sites.items() if not is_read)
        reading = Reading(unread, parallel=self._parallel([call for call, _, _ in read]))
        call, layout, gradient = read[-1]
        if layout.layer.single_query:
            return replace(reading, rows=ReadRows(pool=True))
        rows = _read_rows(gradient, call, layout)
        if rows is None:
            return reading
        num_prefix = len(layout.layer.prefix_tokens)
        cells = rows[num_prefix:]
        if last != call and num_prefix:  # a later layer that cannot be recorded mixes tokens again
            return reading
        shares, linear = self._weights(call, rows, layout.layer.grid)
        ambiguous = bool(cells.any()) and not bool(cells.all())
        read_rows = as_read_rows(shares, layout, linear=linear)
        return replace(reading, rows=read_rows, ambiguous=ambiguous)

    def _parallel(self, calls: Sequence[TracedCall]) -> tuple[str, ...]:
        """Return two consecutive layers of which the later is not computed from the earlier."""
        upstream = self.graph.upstream_of([call.edge for call in calls])
        for index, (call, following) in enumerate(pairwise(calls)):
            if index not in upstream[following.edge]:
                return call.site, following.site
        return ()

    def _weights(
        self, call: TracedCall, rows: Bool[Tensor, " n"], grid: tuple[int, int]
    ) -> tuple[Float[Tensor, " n"], bool]:
        """Return the share of each row and whether these are linear weights."""
        num_prefix = len(rows) - grid[0] * grid[1]
        edges = list(dict.fromkeys(self.outputs[call.num_outputs :]))
        # Of the outputs after the last attention, the last one that still has all tokens apart is
        # where they are pooled: behind MLP and norm, which change the size of gradients.
        if int(rows.sum()) > 1 and edges:
            for gradient in reversed(self.gradients(edges)):
                tokens = None if gradient is None else _as_tokens(gradient, grid, num_prefix)
                if tokens is not None and torch.equal(tokens.ne(0).any(-1), rows):
                    return shares_of_rows(tokens, num_prefix)
        return rows.float() / rows.sum(), int(rows.sum()) == 1


def _as_tokens(
    gradient: Tensor, grid: tuple[int, int], num_prefix: int
) -> Float[Tensor, "n c"] | None:
    """Return the gradient of a tensor by tokens of a grid; None if it has other axes."""
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
    """Return the share that each token has in what is read, and whether it is a linear weight.

    Tokens with parallel gradients are read by the same linear weights, each times a factor, as in a
    mean: their shares are in proportion to these factors. Where the gradients of patches are not
    parallel (maximum, power mean), patches have equal shares of the gradient of their sum. Shares
    of tokens read by other weights (a class token beside a mean of patches) are the sizes of their
    gradients. These are from one direction of the scores, so that sizes up to 1.5 times as large
    count as equal. The gradients are those of a random sum of the scores for each token.

    Example:
        >>> mean, other = torch.tensor([0.3, 0.1, 0.2]), torch.tensor([-1.0, 2.5, 1.0])
        >>> shares_of_rows(torch.stack([mean, mean, mean]), 1)
        (tensor([0.3333, 0.3333, 0.3333]), True)
        >>> shares_of_rows(torch.stack([4 * other, other, other, other]), 1)
        (tensor([0.5714, 0.1429, 0.1429, 0.1429]), True)
        >>> shares_of_rows(torch.stack([8 * other, mean, mean, torch.zeros(3)]), 1)
        (tensor([0.9685, 0.0158, 0.0158, 0.0000]), True)
    """
    # Scores that are a linear function of some tokens have gradients of one direction there, and
    # their lengths are the weights. What is nearly equal is rounding, and becomes equal.
    gradients = gradients.detach().double().nan_to_num()
    norms = gradients.norm(dim=1)
    prefix = norms[:num_prefix_tokens]
    cells = norms[num_prefix_tokens:]
    patches = gradients[num_prefix_tokens:]
    parallel = True
    if bool(cells.any()):
        first = patches[cells.argmax()]
        parallel = bool(_cosines(patches[cells > 0], first).abs().min() > _PARALLEL)
        if parallel and float(cells.amax() / cells[cells > 0].amin()) > _EQUAL:
            shares = cells
        elif parallel:
            shares = (cells > 0) * cells[cells > 0].mean()
        else:
            shares = (cells > 0) * patches.sum(0).norm() / (cells > 0).sum()
        same = _cosines(gradients[:num_prefix_tokens], first).abs() > _PARALLEL
        mean = shares[shares > 0].mean()
        limits = torch.where(same, _EQUAL, _ALIKE) if parallel else _ALIKE
        for whole in (mean, shares.sum()):
            prefix = torch.where(_are_alike(prefix, whole, limits), whole, prefix)
        cells = shares
    elif bool(prefix.any()):
        read = prefix[prefix > 0]
        if float(read.amax() / read.amin()) < _ALIKE:
            prefix = (prefix > 0).double()
    result = torch.cat((prefix, cells))
    return (result / result.sum()).float(), parallel


def mean_of_images(readings: Sequence[ReadRows]) -> ReadRows:
    """Return the shares of tokens of which those that are read depend on the image.

    Patches have equal shares.

    Example:
        >>> first, second = ReadRows((), 1.0, ((1.0, 0.0),)), ReadRows((), 1.0, ((0.0, 1.0),))
        >>> mean_of_images([first, second])
        ReadRows(prefix=(), patches=1.0, cells=(), kinds=(), pool=False, linear=False)
    """
    count = len(readings)
    prefixes = zip(*(reading.prefix for reading in readings), strict=True)
    prefix = tuple(sum(shares) / count for shares in prefixes)
    patches = sum(reading.patches for reading in readings) / count
    return ReadRows(prefix, patches, kinds=readings[0].kinds, linear=False)


def _are_alike(values: Tensor, other: Tensor, limits: Tensor | float) -> Tensor:
    ratio = values / other
    return (ratio < limits) & (ratio > 1 / limits)


def _cosines(gradients: Tensor, other: Tensor) -> Tensor:
    return torch.cosine_similarity(gradients, other[None], dim=1, eps=1e-300)


def _read_rows(
    gradient: Tensor, call: TracedCall, layout: ObservedTokens
) -> Bool[Tensor, " n"] | None:
    """Return which tokens a gradient of attention is nonzero for; None if that is unknown."""
    rows, columns = layout.layer.grid
    count = len(layout.layer.prefix_tokens) + rows * columns
    if call.axis is None:
        planes = gradient.ndim == 4 and tuple(gradient.shape[2:]) == layout.layer.grid
        return gradient[0].ne(0).any(0).flatten() if planes and count == rows * columns else None
    axis = call.axis % gradient.ndim
    nonzero = gradient.ne(0).movedim(axis, -1)
    if layout.windows is None:
        is_read = nonzero.flatten(0, -2).any(0)
        return is_read if len(is_read) == count else None
    if nonzero.shape[0] != len(layout.windows):
        return nonzero.flatten(0, -2).any(0) if nonzero.shape[-1] == count else None
    is_read = nonzero.flatten(1, -2).any(1)
    dense = is_read.new_zeros(count)
    occupied = layout.windows.to(is_read.device) >= 0
    dense[layout.windows.to(is_read.device)[occupied]] = is_read[occupied]
    return dense


def as_read_rows(weights: Float[Tensor, " n"], layout: ObservedTokens, *, linear: bool) -> ReadRows:
    """Return the shares of the tokens of a layer by kind."""
    kinds = layout.layer.prefix_tokens
    prefix = weights[: len(kinds)]
    cells = weights[len(kinds) :]
    total = float(cells.sum())
    equal = float(cells.amax() - cells.amin()) <= 1e-6 * max(total, 1e-12)
    grid: tuple[tuple[float, ...], ...] = ()
    if not equal:
        grid = tuple(map(tuple, (cells / total).view(layout.layer.grid).tolist()))
    return ReadRows(tuple(prefix.tolist()), total, grid, kinds=kinds, linear=linear)
