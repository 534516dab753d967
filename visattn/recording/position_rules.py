"""Rules by which operations of ATen move the centers of receptive fields.

The centers of the elements of a tensor along one axis of the image are a linear function of their
index, a `Line`; a rule gives that of the output of an operation from those of its inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, prod
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Positions along an axis, or along a part of it, that are `step` pixels apart."""

    size: int
    step: float


@dataclass(frozen=True)
class Tokens:
    """An axis with tokens before and after the positions, which lie nowhere on the image."""

    lead: int
    runs: tuple[Run, ...]
    tail: int

    @property
    def size(self) -> int:
        """Number of all tokens."""
        return self.lead + prod(run.size for run in self.runs) + self.tail


# An axis of a tensor, outermost part first: 1536 flattened positions are a run of 32 and one of 48.
Axis = tuple[Run | Tokens, ...]


@dataclass(frozen=True)
class Line:
    """Centers of the elements of a tensor along one axis of the image: start + sum(index * step).

    Args:
        start: Center of the first element, in pixels.
        axes: For each axis of the tensor.
        spread: Distance between the centers of branches whose mean it is.
        radius: An element sees the pixels up to this distance from its center.
        visible: Beginning and end of the pixels that are left after cropping.
        rolled: Pixels by which the elements were rolled around, as shifted windows are; a second
            roll brings them back.
    """

    start: float
    axes: tuple[Axis, ...]
    spread: float = 0.0
    radius: float = 0.5
    visible: tuple[float, float] = (-inf, inf)
    rolled: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether different elements lie at different places."""
        return any(map(moves, self.axes))

    @property
    def reach(self) -> tuple[float, float]:
        """Beginning and end of what the elements see together."""
        ways = [run.step * (run.size - 1) for axis in self.axes for run in steps(axis)]
        first = self.start + sum(min(way, 0.0) for way in ways) - self.radius
        last = self.start + sum(max(way, 0.0) for way in ways) + self.radius
        return max(first, self.visible[0]), min(last, self.visible[1])

    def with_axis(self, index: int, axis: Axis, start: float | None = None) -> "Line":
        """Return the same line with another axis, and another start."""
        axes = (*self.axes[:index], axis, *self.axes[index:][1:])
        return replace(self, axes=axes, start=self.start if start is None else start)


def steps(axis: Axis) -> Iterator[Run]:
    """Yield the runs of an axis, also those behind tokens."""
    for run in axis:
        yield from (run,) if isinstance(run, Run) else run.runs


def moves(axis: Axis) -> bool:
    """Whether different elements along an axis lie at different places."""
    for run in axis:  # the most frequent call of a trace: a generator takes three times as long
        if run.step if isinstance(run, Run) else any(inner.step for inner in run.runs):
            return True
    return False


def still(size: int) -> Axis:
    """Return an axis along which nothing moves, such as that of the channels."""
    return () if size == 1 else (Run(size, 0.0),)


def joined(parts: Sequence[Run | Tokens]) -> Axis:
    """Return parts without those of length one; neighbors that make one run are joined."""
    joined: list[Run | Tokens] = []
    for run in parts:
        last = joined[-1] if joined else None
        if run.size == 1:
            continue
        if isinstance(last, Run) and isinstance(run, Run) and last.step == run.step * run.size:
            joined[-1] = Run(last.size * run.size, run.step)
        else:
            joined.append(run)
    return tuple(joined)


def _reshaped(line: Line, shape: Sequence[int]) -> Line | None:
    """Return the centers after a reshape, which splits and joins parts of axes."""
    # A reshape keeps the order of all elements, so that the parts of all axes, one after the other,
    # are only cut and joined anew. [1536] = 32 x 48 as [4, 8, 48]: 32 rows are cut into 4 groups of
    # 8, whose step is that of 8 rows. What would cut across a part (5 x 7 as 7 x 5) has no line.
    parts = [run for axis in line.axes for run in axis][::-1]  # the next one is the last
    axes: list[Axis] = []
    for size in shape:
        taken: list[Run | Tokens] = []
        missing = size
        while missing > 1:
            if not parts:
                return None
            part = parts.pop()
            if part.size > missing:
                if not isinstance(part, Run) or part.size % missing:
                    return None
                inner = part.size // missing
                parts.append(Run(inner, part.step))
                part = Run(missing, part.step * inner)
            if missing % part.size:
                return None
            taken.append(part)
            missing //= part.size
        axes.append(joined(taken))
    return None if parts else replace(line, axes=tuple(axes))


def broadcast(line: Line, shape: Sequence[int]) -> Line:
    """Return a line expanded to a shape."""
    axes = ((),) * (len(shape) - len(line.axes)) + line.axes
    stretched = (axis or still(size) for axis, size in zip(axes, shape, strict=True))
    return replace(line, axes=tuple(stretched))


def _merged(lines: Sequence[Line], *, interleaved: bool = False) -> Line | None:
    """Return the mean of the centers of branches; None if they are spaced differently.

    A branch that moves along fewer axes, such as a gate for each window, does not count.

    Args:
        interleaved: Whether centers that fill the step evenly count as the parts of one cell, as
            in `cat(x[::2], x[1::2])`, and not as branches that disagree.
    """
    counts = [sum(map(moves, line.axes)) for line in lines]
    most = max(counts, default=0)
    moving = [line for line, count in zip(lines, counts, strict=True) if most and count == most]
    if len({(line.axes, line.rolled) for line in moving}) != 1:
        return None
    starts = [line.start for line in moving]
    apart = max(starts) - min(starts)
    if interleaved and apart:
        finest = min(abs(run.step) for axis in moving[0].axes for run in steps(axis) if run.step)
        phases = sorted(set(starts))
        gaps = {round(later - first, 6) for first, later in pairwise(phases)}
        apart = 0.0 if gaps == {round(finest / len(phases), 6)} else apart
    spread = max(apart, *(line.spread for line in moving))
    begin, end = zip(*(line.visible for line in moving), strict=True)
    return replace(
        moving[0],
        start=sum(starts) / len(starts),
        spread=spread,
        radius=max(line.radius for line in moving) + apart / 2,
        visible=(min(begin), max(end)),
    )


def slid(
    line: Line, axis: int, size: int, *, kernel: int, stride: float, before: float
) -> Line | None:
    """Return the centers after a window slid along an axis.

    Args:
        kernel: Extent of the window, with its gaps.
        stride: Positions from one window to the next.
        before: Positions by which the first window starts before the first position.
    """
    runs = line.axes[axis]
    if not moves(runs):
        return line.with_axis(axis, still(size))
    # The first window covers positions -before to kernel - 1 - before: its middle is where the
    # first center moves. Padding moves centers, but pixels beyond the border are never seen.
    moved = (kernel - 1) / 2 - before
    if len(runs) == 1 and isinstance(run := runs[0], Run):
        axes = joined([Run(size, run.step * stride)])
        line = replace(line, radius=line.radius + abs(run.step) * (kernel - 1) / 2)
        return line.with_axis(axis, axes, line.start + run.step * moved)
    count = prod(run.size for run in runs)
    if kernel == stride == 1 and 0 <= before <= size - count:  # tokens get others around them
        around = [int(before), count, size - count - int(before)]
        return _concatenated([None, line, None], around, axis)
    return line if stride == 1 and not moved and count == size else None


def _resampled(line: Line, axis: int, size: int, ratio: float, first: float) -> Line | None:
    """Return the centers after interpolation: output i is at input position `first + ratio * i`."""
    return slid(line, axis, size, kernel=1, stride=ratio, before=-first)


def _averaged(line: Line, axes: Sequence[int]) -> Line:
    """Return the centers after a mean over axes, which then have length one."""
    for axis in axes:
        middle = sum((run.size - 1) / 2 * run.step for run in steps(line.axes[axis]))
        line = line.with_axis(axis, (), line.start + middle)
        line = replace(line, radius=line.radius + abs(middle))
    return line


def _mixed(line: Line, axis: int, size: int) -> Line | None:
    """Return the centers of sums over an axis, as of channels, in place of which others come."""
    return _averaged(line, [axis]).with_axis(axis, still(size))


def _sliced(line: Line, axis: int, first: int, stride: int, size: int) -> Line | None:
    """Return the centers of some positions along an axis."""
    parts = line.axes[axis]
    if not moves(parts):
        return line.with_axis(axis, still(size))
    total = prod(run.size for run in parts)
    if size == total and stride == 1:
        return line
    if len(parts) != 1:
        return None
    part = parts[0]
    if isinstance(part, Run):
        runs = joined([Run(size, part.step * stride)])
        line = line.with_axis(axis, runs, line.start + part.step * first)
        return replace(line, visible=line.reach) if stride == 1 else line
    # Tokens in front and behind may be cut off, or all of them; cells only where no tokens remain:
    #     [class, 0 1 2 3 4 5]   [1:] -> 0 1 2 3 4 5   [3:5] -> 2 3   [:4] -> class 0 1 2: no line
    end = first + size
    inside = part.lead <= first and end <= total - part.tail
    if stride != 1 or ((first > part.lead or end < total - part.tail) and not inside):
        return None
    if inside:
        body = line.with_axis(axis, part.runs)
        return _sliced(body, axis, first - part.lead, 1, size)
    lead = max(part.lead - first, 0)
    tail = max(part.tail - (total - end), 0)
    return line.with_axis(axis, _with_tokens(lead, part.runs, tail))


def _with_tokens(lead: int, runs: tuple[Run, ...], tail: int) -> Axis:
    return (Tokens(lead, runs, tail),) if lead or tail else runs


def _concatenated(lines: Sequence[Line | None], sizes: Sequence[int], axis: int) -> Line | None:
    """Return the centers of a concatenation."""
    along = [bool(line and moves(line.axes[axis])) for line in lines]
    if not any(along):  # channels
        channels = still(sum(sizes))
        return _merged([line.with_axis(axis, channels) for line in lines if line], interleaved=True)
    index = along.index(True)
    line = lines[index]
    if along.count(True) > 1 or line is None:
        return None
    lead = sum(sizes[:index])
    tail = sum(sizes[index + 1 :])
    parts = line.axes[axis]
    if isinstance(part := parts[0], Tokens):
        runs = part.runs
        lead += part.lead
        tail += part.tail
    else:
        runs = tuple(run for run in parts if isinstance(run, Run))
    if len(parts) > 1 and len(runs) != len(parts):
        return None
    return line.with_axis(axis, _with_tokens(lead, runs, tail))


# ---------------------------------------------------------------- rules for operations of ATen

Lines = tuple[Line | None, Line | None]  # along y and x


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation that ran, and one axis of the image.

    Args:
        line_of: Returns the centers of a tensor along that axis; None if they are unknown.
    """

    line_of: Callable[[Any], Line | None]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outputs: Sequence[Tensor]


Rule = Callable[[Operation], Sequence[Line | None]]
"""From an operation to the centers of its outputs."""


def pair(value: Any, count: int) -> list[Any]:
    """Return an option for each of some axes, as torch takes it for all in one number."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _of_first(rule: Callable[[Line, Operation], Line | None]) -> Rule:
    """Return the rule that gives the first output centers by those of the first input."""

    def apply(op: Operation) -> list[Line | None]:
        line = op.line_of(op.args[0])
        return [line and rule(line, op), *[None] * (len(op.outputs) - 1)]

    return apply


pass_on = _of_first(lambda line, _: line)


def pointwise(op: Operation) -> list[Line | None]:
    """Give the output the mean of the centers of all inputs."""
    shape = op.outputs[0].shape
    lines = [op.line_of(arg) for arg in op.args if isinstance(arg, Tensor)]
    return [_merged([broadcast(line, shape) for line in lines if line])] * len(op.outputs)


@_of_first
def _convolution(line: Line, op: Operation) -> Line | None:
    image, weight, _, strides, paddings, dilations, transposed = op.args[:7]
    count = weight.ndim - 2
    options = zip(
        weight.shape[2:], *(pair(option, count) for option in (strides, paddings, dilations)),
        strict=True,
    )  # fmt: skip
    channel = image.ndim - count - 1
    moved = _mixed(line, channel, op.outputs[0].shape[channel])
    for axis, (kernel, stride, padding, dilation) in enumerate(options, channel + 1):
        size = op.outputs[0].shape[axis]
        extent = (kernel - 1) * dilation + 1
        if transposed:  # output i is input (i + padding - (extent - 1) / 2) / stride
            first = (padding - (extent - 1) / 2) / stride
            moved = moved and _resampled(moved, axis, size, 1 / stride, first)
        else:
            moved = moved and slid(moved, axis, size, kernel=extent, stride=stride, before=padding)
    return moved


@_of_first
def _pooling(line: Line | None, op: Operation) -> Line | None:
    kernels = op.args[1]
    count = len(kernels)
    strides = pair(op.args[2], count) if len(op.args) > 2 and op.args[2] else kernels
    paddings = pair(op.args[3], count) if len(op.args) > 3 else [0] * count
    has_dilation = len(op.args) > 4 and isinstance(op.args[4], (list, tuple))
    dilations = pair(op.args[4], count) if has_dilation else [1] * count
    options = zip(pair(kernels, count), strides, paddings, dilations, strict=True)
    for axis, (kernel, stride, padding, dilation) in enumerate(options, op.args[0].ndim - count):
        size = op.outputs[0].shape[axis]
        extent = (kernel - 1) * dilation + 1
        line = line and slid(line, axis, size, kernel=extent, stride=stride, before=padding)
    return line


@_of_first
def _adaptive_pooling(line: Line | None, op: Operation) -> Line | None:
    for axis in range(op.args[0].ndim - len(op.args[1]), op.args[0].ndim):
        size = op.outputs[0].shape[axis]
        # From 7 to 3 the windows are 0-2, 2-4, 4-6; in general unequal, on average evenly spaced.
        ratio = op.args[0].shape[axis] / size
        line = line and _resampled(line, axis, size, ratio, (ratio - 1) / 2)
    return line


@_of_first
def _interpolation(line: Line | None, op: Operation) -> Line | None:
    aligned = op.kwargs.get("align_corners", op.args[2] if len(op.args) > 2 else None)
    for axis in range(2, op.args[0].ndim):
        count = op.args[0].shape[axis]
        size = op.outputs[0].shape[axis]
        # Half-pixel centers; with align_corners the outermost centers stay where they are.
        ratio = count / size
        first = (count / size - 1) / 2
        if aligned is True and size > 1:
            ratio = (count - 1) / (size - 1)
            first = 0.0
        line = line and _resampled(line, axis, size, ratio, first)
    return line


@_of_first
def _pixel_shuffle(line: Line, op: Operation) -> Line | None:
    """Give the cells that one cell is unfolded into its own center, on average."""
    channel = op.args[0].ndim - 3
    moved = _mixed(line, channel, op.outputs[0].shape[channel])
    for axis in (channel + 1, channel + 2):
        ratio = op.args[0].shape[axis] / op.outputs[0].shape[axis]
        moved = moved and _resampled(moved, axis, op.outputs[0].shape[axis], ratio, (ratio - 1) / 2)
    return moved


@_of_first
def _padding(line: Line | None, op: Operation) -> Line | None:
    for index, before in enumerate(op.args[1][::2]):
        axis = op.args[0].ndim - 1 - index
        size = op.outputs[0].shape[axis]
        line = line and slid(line, axis, size, kernel=1, stride=1, before=before)
    return line


@_of_first
def _transpose(line: Line, op: Operation) -> Line | None:
    first, second = op.args[1:3] if len(op.args) > 1 else (0, -1)
    axes = list(line.axes)
    axes[first], axes[second] = axes[second], axes[first]
    return replace(line, axes=tuple(axes))


@_of_first
def _repeat(line: Line, op: Operation) -> Line | None:
    shape = op.outputs[0].shape
    axes = ((),) * (len(shape) - len(line.axes)) + line.axes
    sizes = (1,) * (len(shape) - op.args[0].ndim) + tuple(op.args[0].shape)
    # Repeated positions would lie at one place twice: no line says that.
    repeated = [new != old for new, old in zip(shape, sizes, strict=True)]
    if any(moves(axis) and more for axis, more in zip(axes, repeated, strict=True)):
        return None
    kept = (still(n) if more else axis for axis, more, n in zip(axes, repeated, shape, strict=True))
    return replace(line, axes=tuple(kept))


@_of_first
def _slice(line: Line, op: Operation) -> Line | None:
    options: list[Any] = [*op.args[1:], *(0, 0, None, 1)[len(op.args) - 1 :]]
    axis, first, _, stride = options
    stride = 1 if stride is None else stride
    count = op.args[0].shape[axis]
    first = min(max(first + count if first and first < 0 else first or 0, 0), count)
    return _sliced(line, axis % op.args[0].ndim, first, stride, op.outputs[0].shape[axis])


def _selected(line: Line | None, axis: int, index: int) -> Line | None:
    line = line and _sliced(line, axis, index, 1, 1)
    return line and replace(line, axes=(*line.axes[:axis], *line.axes[axis + 1 :]))


@_of_first
def _select(line: Line, op: Operation) -> Line | None:
    axis = op.args[1] % op.args[0].ndim
    return _selected(line, axis, op.args[2] % op.args[0].shape[axis])


def _unbind(op: Operation) -> list[Line | None]:
    axis = (op.args[1] if len(op.args) > 1 else 0) % op.args[0].ndim
    return [_selected(op.line_of(op.args[0]), axis, index) for index in range(len(op.outputs))]


def _split(op: Operation) -> list[Line | None]:
    line = op.line_of(op.args[0])
    axis = (op.args[2] if len(op.args) > 2 else 0) % op.args[0].ndim
    lines: list[Line | None] = []
    first = 0
    for output in op.outputs:
        lines.append(line and _sliced(line, axis, first, 1, output.shape[axis]))
        first += output.shape[axis]
    return lines


def _cat(op: Operation) -> list[Line | None]:
    tensors = [tensor for tensor in op.args[0] if tensor.numel()]
    axis = (op.args[1] if len(op.args) > 1 else 0) % op.outputs[0].ndim
    lines = [op.line_of(tensor) for tensor in tensors]
    return [_concatenated(lines, [tensor.shape[axis] for tensor in tensors], axis)]


def _stack(op: Operation) -> list[Line | None]:
    axis = (op.args[1] if len(op.args) > 1 else 0) % op.outputs[0].ndim
    new = still(op.outputs[0].shape[axis])
    lines = [line for line in map(op.line_of, op.args[0]) if line]
    stacked = [replace(line, axes=(*line.axes[:axis], new, *line.axes[axis:])) for line in lines]
    return [_merged(stacked, interleaved=True)]


def _reduction(op: Operation) -> list[Line | None]:
    line = op.line_of(op.args[0])
    count = op.args[0].ndim
    dims = next((arg for arg in op.args[1:] if isinstance(arg, (list, tuple))), None)
    if dims is None and len(op.args) > 1 and type(op.args[1]) is int:
        dims = [op.args[1]]
    if line is None or not dims:
        return [None] * len(op.outputs)
    axes = [dim % count for dim in dims]
    line = _averaged(line, axes)
    if op.outputs[0].ndim < count:
        kept = (axis for index, axis in enumerate(line.axes) if index not in axes)
        line = replace(line, axes=tuple(kept))
    return [line] * len(op.outputs)


def _product(left: Line | None, right: Line | None, size: tuple[int, int]) -> Line | None:
    """Return the centers of a matrix product: those of its rows, else those of its columns.

    In attention the rows are the queries. A product that only sums over positions has none.
    """
    if left is not None:
        rows = _mixed(left, len(left.axes) - 1, size[1])
        if rows and rows.moves:
            return rows
    return right and _mixed(right, len(right.axes) - 2, size[0])


def _matrices(op: Operation) -> list[Line | None]:
    left, right = op.args[-2:] if len(op.args) < 4 else op.args[1:3]
    size = (op.outputs[0].shape[-2], op.outputs[0].shape[-1])
    return [_product(op.line_of(left), op.line_of(right), size)]


@_of_first
def _roll(line: Line | None, op: Operation) -> Line | None:
    dims = op.args[2] if len(op.args) > 2 else ()
    for shift, dim in zip(op.args[1], dims, strict=False):
        runs = list(steps(line.axes[dim % op.args[0].ndim])) if line else []
        # Windows are made of the rolled tensor, and a second roll brings all back: the line stays,
        # with a note, and a map that is taken in between has no place.
        if line and any(run.step for run in runs):
            line = (
                replace(line, rolled=line.rolled + shift * runs[0].step) if len(runs) == 1 else None
            )
    return line if dims else None


@_of_first
def _flip(line: Line | None, op: Operation) -> Line | None:
    for dim in op.args[1]:
        axis = dim % op.args[0].ndim
        size = op.args[0].shape[axis]
        line = line and _resampled(line, axis, size, -1, size - 1)
    return line


@_of_first
def _unfold(line: Line, op: Operation) -> Line | None:
    axis = op.args[1] % op.args[0].ndim
    if len(line.axes[axis]) > 1:
        return None
    [step] = [run.step for run in steps(line.axes[axis])] or [0.0]
    windows = joined([Run(op.outputs[0].shape[axis], step * op.args[3])])
    line = line.with_axis(axis, windows)
    return replace(line, axes=(*line.axes, joined([Run(op.args[2], step)])))


@_of_first
def _im2col(line: Line, op: Operation) -> Line | None:
    if op.args[0].ndim != 4:
        return None
    channels = still(op.args[0].shape[1])
    kept = list[Run | Tokens]()
    inside: list[Run | Tokens] = list(channels)
    for axis, (kernel, dilation, padding, stride) in enumerate(zip(*op.args[1:5], strict=True), 2):
        count = (op.args[0].shape[axis] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        runs = list(steps(line.axes[axis])) or [Run(1, 0.0)]
        if len(runs) > 1:
            return None
        line = replace(line, start=line.start - padding * runs[0].step)
        inside.append(Run(kernel, dilation * runs[0].step))
        kept.append(Run(count, stride * runs[0].step))
    return replace(line, axes=(line.axes[0], joined(inside), joined(kept)))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d",
         "max_pool3d_with_indices", "max_pool3d", "avg_pool3d"),
        _pooling,
    ),
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
         "adaptive_avg_pool1d", "_adaptive_avg_pool3d"),
        _adaptive_pooling,
    ),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d",
         "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d"),
        _interpolation,
    ),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _pixel_shuffle),
    **dict.fromkeys(
        ("constant_pad_nd", "reflection_pad2d", "replication_pad2d", "reflection_pad1d",
         "replication_pad1d"),
        _padding,
    ),
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten",
         "unflatten"),
        _of_first(lambda line, op: _reshaped(line, op.outputs[0].shape)),
    ),
    "permute": _of_first(
        lambda line, op: replace(line, axes=tuple(line.axes[axis] for axis in op.args[1]))
    ),
    **dict.fromkeys(("transpose", "t", "numpy_T", "mT"), _transpose),
    "expand": _of_first(lambda line, op: broadcast(line, op.outputs[0].shape)),
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    "unbind": _unbind,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    "cat": _cat,
    "stack": _stack,
    **dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "var_mean", "logsumexp",
         "linalg_vector_norm", "norm", "prod"),
        _reduction,
    ),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "matmul"), _matrices),
    "linear": _of_first(lambda line, op: _product(line, None, (0, op.outputs[0].shape[-1]))),
    "roll": _roll,
    "flip": _flip,
    "unfold": _unfold,
    "im2col": _im2col,
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
         "_batch_norm_no_update", "cudnn_batch_norm", "native_layer_norm", "native_group_norm",
         "_fused_rms_norm", "rms_norm", "_softmax", "_log_softmax", "softmax", "log_softmax",
         "clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh", "native_dropout",
         "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_safe_softmax",
         "hardswish", "hardsigmoid", "hardtanh", "relu6", "mish", "glu", "log_sigmoid_forward",
         "prelu", "_prelu_kernel", "rrelu_with_noise"),
        pass_on,
    ),
}  # fmt: skip
