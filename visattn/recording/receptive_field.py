"""Receptive fields by arithmetic: where the cells of every activation lie on the network's input.

A run of the model is watched operation by operation. Beside each tensor goes the rule that gives the
center of what an element sees, as a linear function of its index. For the y axis of 64 x 96 pixels:

    image          [b, 3, 64, 96]   y = 0.5 + 1 i        i is the index along the third axis
    3 x 3, /2, p 1 [b, 8, 32, 48]   y = 0.5 + 2 i        half a pixel of its input further up
    flatten(2)     [b, 8, 1536]     y = 0.5 + 2 (n // 48)   n splits into 32 rows of 48
    cat(class, n)  [b, 1537, 8]     the same, behind one token that lies nowhere

Elementwise operations and normalization pass the rule on, matrix products keep the rows of the
tokens that ask, pooling to one cell ends it. Since only shapes and strides count, the model runs on
meta tensors, which hold no numbers, wherever it can.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.geometry.placement import Placement
from visattn.recording.frozen_model import eval_mode
from visattn.recording.module_calls import probing

_BATCH = 2  # more than one, so that no axis of length one but a true one is squeezed


@dataclass(frozen=True)
class _Run:
    """Positions along an axis, or along a part of it, that are `step` pixels apart."""

    size: int
    step: float


@dataclass(frozen=True)
class _Tokens:
    """An axis with tokens before and after the positions, which lie nowhere on the image."""

    lead: int
    runs: tuple[_Run, ...]
    tail: int

    @property
    def size(self) -> int:
        return self.lead + prod(run.size for run in self.runs) + self.tail


# An axis of a tensor, outermost part first: 1536 flattened positions are a run of 32 and one of 48.
_Axis = tuple[_Run | _Tokens, ...]


@dataclass(frozen=True)
class _Line:
    """Centers of the elements of a tensor along one axis of the image: start + sum(index * step).

    Args:
        start: Center of the first element, in pixels.
        axes: For each axis of the tensor.
        spread: Distance between the centers of branches whose mean it is.
        radius: An element sees the pixels up to this distance from its center.
        seen: Beginning and end of the pixels that are left after cropping.
    """

    start: float
    axes: tuple[_Axis, ...]
    spread: float = 0.0
    radius: float = 0.5
    seen: tuple[float, float] = (-inf, inf)

    @property
    def moves(self) -> bool:
        """Whether different elements lie at different places."""
        return any(map(_moves, self.axes))

    @property
    def reach(self) -> tuple[float, float]:
        """Beginning and end of what the elements see together."""
        ways = [run.step * (run.size - 1) for axis in self.axes for run in _steps(axis)]
        first = self.start + sum(min(way, 0.0) for way in ways) - self.radius
        last = self.start + sum(max(way, 0.0) for way in ways) + self.radius
        return max(first, self.seen[0]), min(last, self.seen[1])

    def with_axis(self, index: int, axis: _Axis, start: float | None = None) -> "_Line":
        axes = (*self.axes[:index], axis, *self.axes[index:][1:])
        return replace(self, axes=axes, start=self.start if start is None else start)


def _steps(axis: _Axis) -> Iterator[_Run]:
    for part in axis:
        yield from (part,) if isinstance(part, _Run) else part.runs


def _moves(axis: _Axis) -> bool:
    return any(run.step for run in _steps(axis))


def _still(size: int) -> _Axis:
    """Return an axis along which nothing moves, such as that of the channels."""
    return () if size == 1 else (_Run(size, 0.0),)


def _joined(parts: Sequence[_Run | _Tokens]) -> _Axis:
    """Return parts without those of length one, and with neighbors joined where they are one run."""
    joined: list[_Run | _Tokens] = []
    for part in parts:
        last = joined[-1] if joined else None
        if part.size == 1:
            continue
        if isinstance(last, _Run) and isinstance(part, _Run) and last.step == part.step * part.size:
            joined[-1] = _Run(last.size * part.size, part.step)
        else:
            joined.append(part)
    return tuple(joined)


def _reshaped(line: _Line, shape: Sequence[int]) -> _Line | None:
    """Return the centers after a reshape, which splits and joins parts of axes."""
    parts = [part for axis in line.axes for part in axis][::-1]  # the next one is the last
    axes: list[_Axis] = []
    for size in shape:
        taken: list[_Run | _Tokens] = []
        missing = size
        while missing > 1:
            if not parts:
                return None
            part = parts.pop()
            if part.size > missing:
                if not isinstance(part, _Run) or part.size % missing:
                    return None
                inner = part.size // missing
                parts.append(_Run(inner, part.step))
                part = _Run(missing, part.step * inner)
            if missing % part.size:
                return None
            taken.append(part)
            missing //= part.size
        axes.append(_joined(taken))
    return None if parts else replace(line, axes=tuple(axes))


def _broadcast(line: _Line, shape: Sequence[int]) -> _Line:
    axes = ((),) * (len(shape) - len(line.axes)) + line.axes
    stretched = (axis or _still(size) for axis, size in zip(axes, shape, strict=True))
    return replace(line, axes=tuple(stretched))


def _merged(lines: Sequence[_Line], *, interleaved: bool = False) -> _Line | None:
    """Return the mean of the centers of branches; None if they are spaced differently.

    A branch that moves along fewer axes, such as a gate for each window, is passed over.

    Args:
        lines: Of one shape.
        interleaved: Whether centers that fill the step evenly count as the parts of one cell, as
            in `cat(x[::2], x[1::2])`, and not as branches that disagree.
    """
    most = max((sum(map(_moves, line.axes)) for line in lines), default=0)
    moving = [line for line in lines if most and sum(map(_moves, line.axes)) == most]
    if not moving or any(line.axes != moving[0].axes for line in moving):
        return None
    starts = [line.start for line in moving]
    apart = max(starts) - min(starts)
    if interleaved and apart:
        finest = min(abs(run.step) for axis in moving[0].axes for run in _steps(axis) if run.step)
        phases = sorted(set(starts))
        gaps = {round(later - first, 6) for first, later in zip(phases, phases[1:], strict=False)}
        apart = 0.0 if gaps == {round(finest / len(phases), 6)} else apart
    spread = max(apart, *(line.spread for line in moving))
    begin, end = zip(*(line.seen for line in moving), strict=True)
    return replace(
        moving[0],
        start=sum(starts) / len(starts),
        spread=spread,
        radius=max(line.radius for line in moving) + apart / 2,
        seen=(min(begin), max(end)),
    )


def _slid(
    line: _Line, axis: int, size: int, *, kernel: int, stride: float, before: float
) -> _Line | None:
    """Return the centers after a window slid along an axis.

    Args:
        line: Centers of the input.
        axis: Of the tensor.
        size: Positions of the output.
        kernel: Extent of the window, with its gaps.
        stride: Positions from one window to the next.
        before: Positions by which the first window starts before the first position.
    """
    runs = line.axes[axis]
    if not _moves(runs):
        return line.with_axis(axis, _still(size))
    moved = (kernel - 1) / 2 - before
    if len(runs) == 1 and isinstance(run := runs[0], _Run):
        axes = _joined([_Run(size, run.step * stride)])
        line = replace(line, radius=line.radius + abs(run.step) * (kernel - 1) / 2)
        return line.with_axis(axis, axes, line.start + run.step * moved)
    unchanged = stride == 1 and not moved and prod(part.size for part in runs) == size
    return line if unchanged else None


def _resampled(line: _Line, axis: int, size: int, ratio: float, first: float) -> _Line | None:
    """Return the centers after interpolation: output i is at input position `first + ratio * i`."""
    return _slid(line, axis, size, kernel=1, stride=ratio, before=-first)


def _averaged(line: _Line, axes: Sequence[int]) -> _Line:
    """Return the centers after a mean over axes, which then have length one."""
    for axis in axes:
        middle = sum((run.size - 1) / 2 * run.step for run in _steps(line.axes[axis]))
        line = line.with_axis(axis, (), line.start + middle)
        line = replace(line, radius=line.radius + abs(middle))
    return line


def _sliced(line: _Line, axis: int, first: int, stride: int, size: int) -> _Line | None:
    """Return the centers of some positions along an axis."""
    parts = line.axes[axis]
    if not _moves(parts):
        return line.with_axis(axis, _still(size))
    total = prod(part.size for part in parts)
    if size == total and stride == 1:
        return line
    if len(parts) != 1:
        return None
    part = parts[0]
    if isinstance(part, _Run):
        runs = _joined([_Run(size, part.step * stride)])
        line = line.with_axis(axis, runs, line.start + part.step * first)
        return replace(line, seen=line.reach) if stride == 1 else line
    end = first + size
    inside = part.lead <= first and end <= total - part.tail
    if stride != 1 or (first > part.lead or end < total - part.tail) and not inside:
        return None
    if inside:
        body = line.with_axis(axis, part.runs)
        return _sliced(body, axis, first - part.lead, 1, size)
    lead, tail = max(part.lead - first, 0), max(part.tail - (total - end), 0)
    return line.with_axis(axis, _with_tokens(lead, part.runs, tail))


def _with_tokens(lead: int, runs: tuple[_Run, ...], tail: int) -> _Axis:
    return (_Tokens(lead, runs, tail),) if lead or tail else runs


def _concatenated(lines: Sequence[_Line | None], sizes: Sequence[int], axis: int) -> _Line | None:
    """Return the centers of a concatenation.

    Args:
        lines: Of each tensor.
        sizes: Of each tensor along the axis.
        axis: Along which they are concatenated.
    """
    along = [bool(line and _moves(line.axes[axis])) for line in lines]
    if not any(along):  # channels
        still = [line.with_axis(axis, _still(sum(sizes))) for line in lines if line]
        return _merged(still, interleaved=True)
    if along.count(True) > 1:
        return None
    index = along.index(True)
    line = lines[index]
    [part, *others] = line.axes[axis] if line else ()
    lead, tail = sum(sizes[:index]), sum(sizes[index + 1 :])
    if line is None or (others and isinstance(part, _Tokens)):
        return None
    if isinstance(part, _Tokens):
        return line.with_axis(
            axis, _with_tokens(part.lead + lead, part.runs, part.tail + tail)
        )
    runs = tuple(run for run in line.axes[axis] if isinstance(run, _Run))
    return line.with_axis(axis, _with_tokens(lead, runs, tail))


# ---------------------------------------------------------------- rules for operations of ATen

_Lines = tuple[_Line | None, _Line | None]  # along y and x
_Get = Callable[[Any], _Line | None]
_Rule = Callable[[_Get, Sequence[Any], dict[str, Any], Sequence[Tensor]], Sequence[_Line | None]]


def _pair(value: Any, count: int) -> list[Any]:
    """Return an option for each of some axes, as torch takes it for all in one number."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _pass_on(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    return [get(args[0]), *[None] * (len(outputs) - 1)]


def _pointwise(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    shape = outputs[0].shape
    lines = [get(arg) for arg in args if isinstance(arg, Tensor)]
    return [_merged([_broadcast(line, shape) for line in lines if line])] * len(outputs)


def _convolution(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    image, weight, _, strides, paddings, dilations, transposed = args[:7]
    line, count = get(image), weight.ndim - 2
    if line is None:
        return [None]
    options = zip(
        weight.shape[2:], *(_pair(each, count) for each in (strides, paddings, dilations)),
        strict=True,
    )  # fmt: skip
    channel = image.ndim - count - 1
    line = _averaged(line, [channel]).with_axis(channel, _still(outputs[0].shape[channel]))
    for axis, (kernel, stride, padding, dilation) in enumerate(options, channel + 1):
        size, extent = outputs[0].shape[axis], (kernel - 1) * dilation + 1
        if transposed:  # output i is input (i + padding - (extent - 1) / 2) / stride
            first = (padding - (extent - 1) / 2) / stride
            line = line and _resampled(line, axis, size, 1 / stride, first)
        else:
            line = line and _slid(
                line, axis, size, kernel=extent, stride=stride, before=padding
            )
    return [line]


def _pooling(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line, kernels = get(args[0]), args[1]
    count = len(kernels)
    strides = _pair(args[2], count) if len(args) > 2 and args[2] else kernels
    paddings = _pair(args[3], count) if len(args) > 3 else [0] * count
    has_dilation = len(args) > 4 and isinstance(args[4], (list, tuple))
    dilations = _pair(args[4], count) if has_dilation else [1] * count
    options = zip(_pair(kernels, count), strides, paddings, dilations, strict=True)
    for axis, (kernel, stride, padding, dilation) in enumerate(options, args[0].ndim - count):
        size, extent = outputs[0].shape[axis], (kernel - 1) * dilation + 1
        line = line and _slid(line, axis, size, kernel=extent, stride=stride, before=padding)
    return [line, *[None] * (len(outputs) - 1)]


def _adaptive_pooling(
    get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]
) -> list[Any]:
    line = get(args[0])
    for axis in range(args[0].ndim - len(args[1]), args[0].ndim):
        size = outputs[0].shape[axis]
        ratio = args[0].shape[axis] / size
        line = line and _resampled(line, axis, size, ratio, (ratio - 1) / 2)
    return [line, *[None] * (len(outputs) - 1)]


def _interpolation(
    get: _Get, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Tensor]
) -> list[Any]:
    line, aligned = get(args[0]), kwargs.get("align_corners", args[2] if len(args) > 2 else None)
    for axis in range(2, args[0].ndim):
        count, size = args[0].shape[axis], outputs[0].shape[axis]
        ratio, first = count / size, (count / size - 1) / 2
        if aligned is True and size > 1:
            ratio, first = (count - 1) / (size - 1), 0.0
        line = line and _resampled(line, axis, size, ratio, first)
    return [line]


def _pixel_shuffle(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    """Give the cells that one cell is unfolded into its own center, on average."""
    line, channel = get(args[0]), args[0].ndim - 3
    line = line and _averaged(line, [channel])
    line = line and line.with_axis(channel, _still(outputs[0].shape[channel]))
    for axis in (channel + 1, channel + 2):
        ratio = args[0].shape[axis] / outputs[0].shape[axis]
        line = line and _resampled(line, axis, outputs[0].shape[axis], ratio, (ratio - 1) / 2)
    return [line]


def _padding(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    for index, before in enumerate(args[1][::2]):
        axis = args[0].ndim - 1 - index
        line = line and _slid(
            line, axis, outputs[0].shape[axis], kernel=1, stride=1, before=before
        )
    return [line]


def _reshape(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    return [line and _reshaped(line, outputs[0].shape)]


def _permute(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    return [line and replace(line, axes=tuple(line.axes[axis] for axis in args[1]))]


def _transpose(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    first, second = args[1:3] if len(args) > 1 else (0, -1)
    if line is None:
        return [None]
    axes = list(line.axes)
    axes[first], axes[second] = axes[second], axes[first]
    return [replace(line, axes=tuple(axes))]


def _expand(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    return [line and _broadcast(line, outputs[0].shape)]


def _repeat(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line, shape = get(args[0]), outputs[0].shape
    if line is None:
        return [None]
    axes = ((),) * (len(shape) - len(line.axes)) + line.axes
    sizes = (1,) * (len(shape) - args[0].ndim) + tuple(args[0].shape)
    repeated = [new != old for new, old in zip(shape, sizes, strict=True)]
    if any(_moves(axis) and more for axis, more in zip(axes, repeated, strict=True)):
        return [None]
    kept = (_still(n) if more else axis for axis, more, n in zip(axes, repeated, shape, strict=True))
    return [replace(line, axes=tuple(kept))]


def _slice(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    axis, first, _, stride = (*args[1:], *(0, 0, None, 1)[len(args) - 1 :])
    axis, count = axis % args[0].ndim, args[0].shape[axis]
    first = min(max(first + count if first and first < 0 else first or 0, 0), count)
    return [line and _sliced(line, axis, first, stride, outputs[0].shape[axis])]


def _selected(line: _Line | None, axis: int, index: int) -> _Line | None:
    line = line and _sliced(line, axis, index, 1, 1)
    return line and replace(line, axes=(*line.axes[:axis], *line.axes[axis + 1 :]))


def _select(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    axis = args[1] % args[0].ndim
    return [_selected(get(args[0]), axis, args[2] % args[0].shape[axis])]


def _unbind(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    axis = (args[1] if len(args) > 1 else 0) % args[0].ndim
    return [_selected(get(args[0]), axis, index) for index in range(len(outputs))]


def _split(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line, axis = get(args[0]), (args[2] if len(args) > 2 else 0) % args[0].ndim
    lines: list[_Line | None] = []
    first = 0
    for part in outputs:
        lines.append(line and _sliced(line, axis, first, 1, part.shape[axis]))
        first += part.shape[axis]
    return lines


def _cat(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    tensors = [tensor for tensor in args[0] if tensor.numel()]
    axis = (args[1] if len(args) > 1 else 0) % outputs[0].ndim
    lines = [get(tensor) for tensor in tensors]
    return [_concatenated(lines, [tensor.shape[axis] for tensor in tensors], axis)]


def _stack(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    axis = (args[1] if len(args) > 1 else 0) % outputs[0].ndim
    new = _still(outputs[0].shape[axis])
    lines = [line for line in map(get, args[0]) if line]
    stacked = [
        replace(line, axes=(*line.axes[:axis], new, *line.axes[axis:])) for line in lines
    ]
    return [_merged(stacked, interleaved=True)]


def _reduction(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line, count = get(args[0]), args[0].ndim
    dims = next((arg for arg in args[1:] if isinstance(arg, (list, tuple))), None)
    if dims is None and len(args) > 1 and type(args[1]) is int:
        dims = [args[1]]
    if line is None or not dims:
        return [None] * len(outputs)
    axes = [dim % count for dim in dims]
    line = _averaged(line, axes)
    if outputs[0].ndim < count:
        kept = (axis for index, axis in enumerate(line.axes) if index not in axes)
        line = replace(line, axes=tuple(kept))
    return [line] * len(outputs)


def _product(left: _Line | None, right: _Line | None, size: tuple[int, int]) -> _Line | None:
    """Return the centers of a matrix product: those of its rows, else those of its columns.

    In attention the rows are the queries. A product that only sums over positions has none.
    """
    if left is not None:
        rows = _averaged(left, [len(left.axes) - 1]).with_axis(len(left.axes) - 1, _still(size[1]))
        if rows.moves:
            return rows
    if right is None:
        return None
    return _averaged(right, [len(right.axes) - 2]).with_axis(len(right.axes) - 2, _still(size[0]))


def _matrices(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    left, right = args[-2:] if len(args) < 4 else args[1:3]
    size = (outputs[0].shape[-2], outputs[0].shape[-1])
    return [_product(get(left), get(right), size)]


def _linear(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    return [_product(get(args[0]), None, (0, outputs[0].shape[-1]))]


def _roll(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    """Move the centers; the few that come in at the other side are moved back by a second roll."""
    line, dims = get(args[0]), args[2] if len(args) > 2 else ()
    for shift, dim in zip(args[1], dims, strict=False):
        axis = dim % args[0].ndim
        size = args[0].shape[axis]
        line = line and _slid(line, axis, size, kernel=1, stride=1, before=shift)
    return [line if dims else None]


def _flip(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    for dim in args[1]:
        axis = dim % args[0].ndim
        size = args[0].shape[axis]
        line = line and _resampled(line, axis, size, -1, size - 1)
    return [line]


def _unfold(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line, axis = get(args[0]), args[1] % args[0].ndim
    if line is None or len(line.axes[axis]) > 1:
        return [None]
    [step] = [run.step for run in _steps(line.axes[axis])] or [0.0]
    windows = _joined([_Run(outputs[0].shape[axis], step * args[3])])
    line = line.with_axis(axis, windows)
    return [replace(line, axes=(*line.axes, _joined([_Run(args[2], step)])))]


def _im2col(get: _Get, args: Sequence[Any], _: Any, outputs: Sequence[Tensor]) -> list[Any]:
    line = get(args[0])
    if line is None or args[0].ndim != 4:
        return [None]
    channels, kept = _still(args[0].shape[1]), list[_Run | _Tokens]()
    inside: list[_Run | _Tokens] = list(channels)
    for axis, (kernel, dilation, padding, stride) in enumerate(zip(*args[1:5], strict=True), 2):
        count = (args[0].shape[axis] + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        runs = list(_steps(line.axes[axis])) or [_Run(1, 0.0)]
        if len(runs) > 1:
            return [None]
        line = replace(line, start=line.start - padding * runs[0].step)
        inside.append(_Run(kernel, dilation * runs[0].step))
        kept.append(_Run(count, stride * runs[0].step))
    return [replace(line, axes=(line.axes[0], _joined(inside), _joined(kept)))]


_aten = torch.ops.aten
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "max_pool2d", "avg_pool2d", "max_pool1d", "avg_pool1d"),
        _pooling,
    ),
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
         "adaptive_avg_pool1d"),
        _adaptive_pooling,
    ),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
         "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d"),
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
        _reshape,
    ),
    "permute": _permute,
    **dict.fromkeys(("transpose", "t", "numpy_T", "mT"), _transpose),
    "expand": _expand,
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
    "linear": _linear,
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
         "hardswish", "hardsigmoid", "hardtanh", "relu6", "mish", "glu", "log_sigmoid_forward", "prelu",
         "_prelu_kernel", "rrelu_with_noise"),
        _pass_on,
    ),
}  # fmt: skip
_NOWHERE: _Lines = (None, None)
_SAME_SHAPE = frozenset(
    {"relu", "hardtanh", "silu", "gelu", "sigmoid", "hardswish", "hardsigmoid", "leaky_relu", "elu",
     "_softmax", "mish", "tanh"}
)  # fmt: skip
_NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit_no_training", "native_layer_norm",
     "native_group_norm"}
)  # fmt: skip


def _tensors_of(args: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among the arguments of an operation, also of those that take a list."""
    tensors: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, (list, tuple)):
            tensors += [part for part in arg if isinstance(part, Tensor)]
    return tensors


def _shape_only(name: str, args: Sequence[Any]) -> Any:
    """Return the output of the most frequent operations on meta tensors; None for all others.

    It is what the operation returns, in a tenth of the time that its shape function in Python takes.
    """
    if name.endswith("_") and name[:-1] in _SAME_SHAPE:
        return args[0]
    if name in _SAME_SHAPE:
        return torch.empty_like(args[0])
    if name in _NORMS:
        return torch.empty_like(args[0]), None, None
    if name in ("add", "mul", "add_", "mul_") and isinstance(args[1], Tensor):
        first, second = args[:2]
        if first.shape != second.shape or first.dtype != second.dtype:
            return None
        return first if name.endswith("_") else torch.empty_like(first)
    if name == "convolution" and not args[6]:
        image, weight = args[0], args[1]
        count = weight.ndim - 2
        spatial = [
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                image.shape[-count:],
                weight.shape[2:],
                *(_pair(option, count) for option in args[3:6]),
                strict=True,
            )
        ]
        shape = (*image.shape[: -count - 1], weight.shape[0], *spatial)
        return torch.empty(shape, dtype=image.dtype, device="meta")
    return None


def _checked(line: _Line | None, output: Tensor) -> _Line | None:
    """Return a line that fits its tensor; None if it does not, or if nothing moves."""
    if line is None or len(line.axes) != output.ndim:
        return None
    for index, size in enumerate(output.shape):
        axis = line.axes[index]
        if prod(part.size for part in axis) != size:
            if _moves(axis):
                return None
            line = line.with_axis(index, _still(size))
    return line if line.moves else None


@dataclass(eq=False)
class _Call:
    """One call of a module: the centers of its outputs, and of the keys of attention inside."""

    outputs: list[_Lines] = field(default_factory=list)
    keys: list[_Lines] = field(default_factory=list)


class _Tracer(TorchDispatchMode):
    """Carries centers through the operations of one run.

    Args:
        meta: Whether tensors that meet meta tensors are replaced by meta tensors of their shape.
    """

    def __init__(self, *, meta: bool) -> None:
        super().__init__()
        self.meta = meta
        self.lines: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.twins: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.keys: list[_Lines] = []
        self.unknown: set[str] = set()

    def start(self, images: Tensor) -> None:
        """Give the pixels of the images their centers."""
        y, x = (_Run(size, 1.0) for size in images.shape[-2:])
        still = tuple(map(_still, images.shape[:-2]))
        rows, columns = map(_still, images.shape[-2:])
        vertical = _Line(0.5, (*still, _joined([y]), columns))
        horizontal = _Line(0.5, (*still, rows, _joined([x])))
        self.lines[images] = (vertical, horizontal)

    def of(self, tensor: Any) -> _Lines:
        """Return the centers of a tensor along y and x."""
        return self.lines.get(tensor, _NOWHERE) if isinstance(tensor, Tensor) else _NOWHERE

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note the centers of its outputs."""
        kwargs = kwargs or {}
        name = str(func.overloadpacket.__name__)
        tensors = _tensors_of(args)
        output = None
        if self.meta and any(tensor.is_meta for tensor in tensors):
            output = _shape_only(name, args)
            if output is None:
                args, kwargs = self._on_meta(args, kwargs)
        if output is None:
            output = func(*args, **kwargs)
        if not any(tensor in self.lines for tensor in tensors):
            return output
        outputs = output if isinstance(output, (list, tuple)) else [output]
        results = [part for part in outputs if isinstance(part, Tensor)]
        self._note_keys(name, args)
        traced = self._trace(func, name, args, kwargs, results)
        for tensor, lines in zip(results, traced, strict=False):
            if any(lines):
                self.lines[tensor] = lines
            else:
                self.lines.pop(tensor, None)
        return output

    def _trace(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any, results: list[Tensor]
    ) -> list[_Lines]:
        in_place = name.endswith("_") and not name.startswith("_")
        rule = _RULES.get(name)
        if rule is None and in_place:
            rule = _RULES.get(name.rstrip("_"))
        if rule is None and torch.Tag.pointwise in func.tags:
            rule = _pointwise
        if rule is None and name.startswith("_scaled_dot_product"):
            rule = _pass_on
        if name == "copy_":
            return [self._copied(args[0], args[1])]
        if rule is None or not results:
            self.unknown.add(name)
            return [_NOWHERE] * len(results)
        axes: list[list[_Line | None]] = []
        for axis in (0, 1):
            lines = rule(lambda part, axis=axis: self.of(part)[axis], args, kwargs, results)
            axes.append(
                [_checked(line, result) for line, result in zip(lines, results, strict=False)]
            )
        return list(zip(*axes, strict=True))

    def _copied(self, target: Tensor, source: Tensor) -> _Lines:
        """Return the centers of a tensor that another was copied to, also into its whole buffer."""
        lines = [line and _broadcast(line, target.shape) for line in self.of(source)]
        base = target._base  # noqa: SLF001 - the only way to know what a view is a view of
        if base is not None and base.ndim == target.ndim and base.stride() == target.stride():
            offset = target.storage_offset() - base.storage_offset()
            whole: list[_Line | None] = list(lines)
            for axis, stride in enumerate(base.stride()):
                before, offset = divmod(offset, stride) if stride else (0, offset)
                size = base.shape[axis]
                whole = [
                    line and _slid(line, axis, size, kernel=1, stride=1, before=before)
                    for line in whole
                ]
            self.lines[base] = (whole[0], whole[1])
        return lines[0], lines[1]

    def _note_keys(self, name: str, args: tuple[Any, ...]) -> None:
        """Note the centers of the values that attention averages, which are those of its keys."""
        if name.startswith("_scaled_dot_product"):
            values = args[2]
        elif name in ("bmm", "baddbmm", "matmul"):
            values = args[-1] if name != "baddbmm" else args[2]
        else:
            return
        lines = self.of(values)
        if any(line and _moves(line.axes[-2]) for line in lines):
            self.keys.append(lines)

    def _on_meta(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs = {name: part for name, part in kwargs.items() if name != "device"}
        return tree_map_only(Tensor, self._twin, (args, kwargs))

    def _twin(self, tensor: Tensor) -> Tensor:
        """Return a meta tensor in place of one with values."""
        if tensor.is_meta:
            return tensor
        if tensor not in self.twins:
            twin = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            self.twins[tensor] = twin
        return self.twins[tensor]


class TracedGrids:
    """Where the activations of a model lie on its input, module by module.

    Args:
        calls: The calls of each module, in order.
        input_size: Height and width of the input.
        error: Why nothing could be traced; "" if it was.
    """

    def __init__(
        self, calls: dict[str, list[_Call]], input_size: tuple[int, int], error: str = ""
    ) -> None:
        self.calls, self.input_size, self.error = calls, input_size, error

    def output(
        self, site: str, grid: tuple[int, int], *, call: int | None = None, index: int = 0
    ) -> Placement | None:
        """Return where the output of a module lies; None if its centers could not be followed.

        Args:
            site: Qualified name of the module.
            grid: Rows and columns of the output.
            call: Which of its calls, from 1; None for the last.
            index: Which tensor of the output, if there are several.
        """
        calls = self.calls.get(site, [])
        if not calls or (call is not None and call > len(calls)):
            return None
        outputs = calls[(call or 0) - 1].outputs
        if index >= len(outputs):
            return None
        return _placement(outputs[index], grid, self.input_size)

    def keys(self, site: str, grid: tuple[int, int]) -> Placement | None:
        """Return where the keys of attention lie that is computed in a module, or around a tap.

        Args:
            site: Qualified name of the module.
            grid: Rows and columns of the keys.
        """
        name = site
        while True:
            for call in self.calls.get(name, [])[-1:]:
                found = [_placement(lines, grid, self.input_size) for lines in call.keys]
                known = [placement for placement in found if placement]
                if known:
                    return known[-1]
            if not name:
                return None
            name = name.rpartition(".")[0]


def _placement(
    lines: _Lines, grid: tuple[int, int], input_size: tuple[int, int]
) -> Placement | None:
    """Return the placement of a grid; None if the tensor has another grid, or its place is lost.

    An axis with a single cell covers the whole input.
    """
    starts: list[float] = []
    steps: list[float] = []
    for line, count, side in zip(lines, grid, input_size, strict=True):
        step = float(side) if count == 1 and line is None else _step(line, count)
        if step is None:
            return None
        starts.append(side / 2 if line is None else line.start)
        steps.append(step)
    (top, bottom), (left, right) = (
        (0.0, float(side)) if line is None else (max(line.reach[0], 0), min(line.reach[1], side))
        for line, side in zip(lines, input_size, strict=True)
    )
    whole = (left, top, right, bottom) == (0, 0, input_size[1], input_size[0])
    y, x = (0.0 if line is None else line.spread for line in lines)
    return Placement.from_centers(
        (starts[0], starts[1]),
        (steps[0], steps[1]),
        grid,
        input_size,
        seen=None if whole else (left, top, right, bottom),
        spread=(y, x),
    )


def _step(line: _Line | None, count: int) -> float | None:
    """Return the distance of neighbors on a line with so many positions; None if it has others."""
    runs = [run for axis in line.axes for run in _steps(axis) if run.step] if line else []
    joined = _joined(sorted(runs, key=lambda run: abs(run.step), reverse=True))
    one = len(joined) == 1 and joined[0].size == count
    return joined[0].step if one and isinstance(joined[0], _Run) else None


def trace_grids(
    model: nn.Module,
    forward: Callable[[Tensor], Any],
    input_size: tuple[int, int],
    channels: int = 3,
) -> TracedGrids:
    """Return where the activations of a model lie on its input, from one run.

    The run takes place on meta tensors, which cost no arithmetic; a model that reads the numbers of
    its activations runs on zeros instead.

    Args:
        model: The model, in any mode; it is restored.
        forward: Calls it with images.
        input_size: Height and width of the images.
        channels: Of the images.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(2), nn.Flatten())
        >>> traced = trace_grids(model, model, (16, 24))
        >>> traced.output("0", (8, 12)).extent
        (-0.5, -0.5, 23.5, 15.5)
        >>> traced.output("1", (4, 6)).shift((4, 6))
        (-0.125, -0.125)
    """
    weights = (weight for weight in model.parameters() if weight.is_floating_point())
    weight = next(weights, torch.zeros(()))
    images = weight.detach().new_zeros(_BATCH, channels, *input_size)
    errors: list[str] = []
    for meta in (True, False):
        calls: dict[str, list[_Call]] = {}
        batch = images.to("meta") if meta else images
        tracer = _Tracer(meta=meta)
        devices = [images.device] if images.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=devices), torch.no_grad(), eval_mode(model), probing(),
            _noting_calls(model, tracer, calls),
        ):  # fmt: skip
            tracer.start(batch)
            try:
                with tracer:
                    output = forward(batch)
            except Exception as error:  # noqa: BLE001 - whatever the user's model raises
                errors.append(f"{type(error).__name__}: {error}")
                continue
        outputs = [tracer.of(tensor) for tensor in _tensors(output)]
        calls.setdefault("", [_Call(outputs, tracer.keys)])  # `forward` need not call the model
        return TracedGrids(calls, input_size)
    return TracedGrids({}, input_size, errors[-1])


@contextmanager
def _noting_calls(
    model: nn.Module, tracer: _Tracer, calls: dict[str, list[_Call]]
) -> Iterator[None]:
    """Note the centers of the outputs of each module, and of the keys of its attention."""
    begun: list[int] = []
    with ExitStack() as stack:
        for site, module in model.named_modules():

            def enter(*_: Any) -> None:
                begun.append(len(tracer.keys))

            def leave(_: nn.Module, __: Any, output: Any, site: str = site) -> None:
                keys = tracer.keys[begun.pop() :] if begun else []
                outputs = [tracer.of(tensor) for tensor in _tensors(output)]
                calls.setdefault(site, []).append(_Call(outputs, keys))

            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave).remove)
        yield


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output, as far as they can be told apart."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for part in output.values():
            yield from _tensors(part)
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)
