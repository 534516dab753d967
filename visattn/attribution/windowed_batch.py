"""Feature maps of images with a changed window, computed only where the window reaches.

A window of 32 of 224 pixels changes 19 of the 112 columns after the first convolution of a ResNet,
and 17 of the 56 after its first stage. A `WindowedBatch` keeps the maps of the unchanged images
and, for each window, a box around what changed. A model runs on it as on any batch:

    +---------------+   A convolution cuts what the cells of its box see (outer box) out of the
    |  +---------+  |   unchanged maps, pastes the box before it (inner box) over that, and runs on
    |  |  +---+  |  |   this alone.
    |  |  +---+  |  |
    |  +---------+  |
    +---------------+

Where an operation has no rule here, or a box covers most of a map, it gets the whole maps. Results
are those of the whole batch, up to rounding.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._pytree import tree_leaves, tree_map_only

from visattn.recording.position_rules import pair

_MOST = 0.6  # share of a map from which on copies cost more than is saved
_ELEMENTWISE = frozenset({"_to_copy", "hardswish", "hardswish_"})  # beside those that torch marks
_WITHOUT_MODE = torch.ops.aten._native_batch_norm_legit_no_training  # noqa: SLF001 - no other name
_Rule = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
"""From an operation and its arguments to its output; None if it needs the whole maps."""


class Boxes(NamedTuple):
    """Boxes of one size in a map: the first row and column of each, and their height and width."""

    corners: list[tuple[int, ...]]
    size: tuple[int, ...]

    def cover(self, shape: Sequence[int]) -> bool:
        """Whether a box is most of a map `[..., y, x]`."""
        return self.size[0] * self.size[1] > _MOST * shape[-2] * shape[-1]

    def spans(self, axis: int) -> Iterator[tuple[int, int]]:
        """Yield the first cell of each box along an axis, and the one behind its last."""
        return ((corner[axis], corner[axis] + self.size[axis]) for corner in self.corners)


class WindowedBatch(Tensor):
    """Maps `[mb c y x]` of b images with m windows, equal to those of the images outside of boxes.

    Args:
        base: Maps of the unchanged images, `[b c y x]`.
        crops: What is in the boxes, `[mb c h w]`; None if it was not computed.
        boxes: One for each window.
        most_cells: Of a map that may be made whole.
    """

    base: Tensor
    crops: Tensor | None
    boxes: Boxes
    most_cells: int
    whole: Tensor | None
    # Operations arrive in `__torch_dispatch__`; functions of torch need not know of this class.
    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001  # pyright: ignore[reportAssignmentType] - as torch documents

    @staticmethod
    def __new__(
        cls, base: Tensor, crops: Tensor | None, boxes: Boxes, most_cells: int
    ) -> "WindowedBatch":
        """Make a tensor without memory."""
        b, c, y, x = base.shape
        self = Tensor._make_wrapper_subclass(  # noqa: SLF001 - as torch documents
            cls, (len(boxes.corners) * b, c, y, x), strides=(c * y * x, 1, c * x, c),
            dtype=base.dtype, device=base.device,
        )  # fmt: skip
        self.base, self.crops, self.boxes, self.whole = base, crops, boxes, None
        self.most_cells = most_cells
        return self

    def like(self, base: Tensor, crops: Tensor | None, boxes: Boxes) -> "WindowedBatch":
        """Return other maps of the same images and windows."""
        return WindowedBatch(base, crops, boxes, self.most_cells)

    def cut(
        self, boxes: Boxes, padding: Sequence[int] = (0, 0), fill: float = 0.0
    ) -> Float[Tensor, "mb c h w"]:
        """Return what is in other boxes, which may reach over the border by as much as `padding`.

        Raises:
            RuntimeError: If the contents of these maps were not computed.
        """
        if self.crops is None:
            raise RuntimeError("the indices of max pooling are not known for windows")
        if boxes == self.boxes:
            return self.crops
        down, across = padding
        edges = (across, across, down, down)
        base = pad(self.base, edges, value=fill) if any(padding) else self.base
        count = len(base)
        result = torch.empty(
            (len(self), base.shape[1], *boxes.size),
            dtype=base.dtype, device=base.device, memory_format=torch.channels_last,
        )  # fmt: skip
        spans = (part.spans(axis) for part in (boxes, self.boxes) for axis in (0, 1))
        for index, (rows, columns, own_rows, own_columns) in enumerate(zip(*spans, strict=True)):
            images = slice(index * count, (index + 1) * count)
            y, x = rows[0] + down, columns[0] + across
            result[images] = base[:, :, y : y + boxes.size[0], x : x + boxes.size[1]]
            to_y, from_y = _overlap(rows, own_rows)
            to_x, from_x = _overlap(columns, own_columns)
            result[images, :, to_y, to_x] = self.crops[images, :, from_y, from_x]
        return result

    def full(self) -> Tensor:
        """Return the maps as a plain tensor; what is done to them in place is done to it.

        Raises:
            RuntimeError: If they have more cells than may be made whole.
        """
        if self.whole is None:
            height, width = self.base.shape[2:]
            if height * width > self.most_cells:
                raise RuntimeError(
                    f"maps of at most {self.most_cells} cells may be made whole, but an operation "
                    f"needs {height} x {width}: run the model on the images"
                )
            self.whole = self.cut(Boxes([(0, 0)] * len(self.boxes.corners), (height, width)))
            self.crops = None
        return self.whole

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on base and boxes where there is a rule for it, else on whole maps."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        rule = _RULES.get(name)
        marked = torch.Tag.pointwise in func.tags
        if rule is None and marked and torch.Tag.nondeterministic_seeded not in func.tags:
            rule = _elementwise
        batches = _batches((args, kwargs))
        if rule is not None and all(batch.whole is None for batch in batches):
            result = rule(func, args, kwargs)
            if result is not None:
                return result
        args, kwargs = tree_map_only(WindowedBatch, WindowedBatch.full, (args, kwargs))
        return func(*args, **kwargs)


def windowed_batch(
    images: Float[Tensor, "b c y x"],
    windows: Int[Tensor, "m 4"],
    baseline: Tensor,
    *,
    most_cells: int | None = None,
) -> WindowedBatch:
    """Return images with windows that are filled with a color, `[mb c y x]`.

    Args:
        windows: Left, top, right and bottom of each, in pixels; inside of the image.
        baseline: Of one pixel, `[1 c 1 1]`.
        most_cells: Operations that need a whole map of more cells raise an error; None for none.

    Example:
        >>> windows = torch.tensor([[0, 0, 2, 1], [2, 0, 3, 1]])
        >>> batch = windowed_batch(torch.ones(1, 1, 1, 3), windows, torch.zeros(1, 1, 1, 1))
        >>> batch.full().tolist()
        [[[[0.0, 0.0, 1.0]]], [[[1.0, 1.0, 0.0]]]]
    """
    # The last windows of a row may be smaller: their boxes begin before them.
    height, width = (windows[:, 2:] - windows[:, :2]).amax(0).flip(0).tolist()
    corners, crops = [], []
    for left, top, right, bottom in windows.tolist():
        y, x = min(top, images.shape[2] - height), min(left, images.shape[3] - width)
        crop = images[:, :, y : y + height, x : x + width].clone()
        crop[:, :, top - y : bottom - y, left - x : right - x] = baseline
        corners.append((y, x))
        crops.append(crop)
    base, inside = (
        part.clone(memory_format=torch.channels_last) for part in (images, torch.cat(crops))
    )
    boxes = Boxes(corners, (height, width))
    pixels = images.shape[2] * images.shape[3]
    return WindowedBatch(base, inside, boxes, pixels if most_cells is None else most_cells)


def _overlap(span: tuple[int, int], other: tuple[int, int]) -> tuple[slice, slice]:
    """Return the common cells of two spans, counted from the first cell of each."""
    first = max(span[0], other[0])
    last = max(first, min(span[1], other[1]))
    return slice(first - span[0], last - span[0]), slice(first - other[0], last - other[0])


def _batches(arguments: Any) -> list[WindowedBatch]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, WindowedBatch)]


def _common(batches: Sequence[WindowedBatch]) -> Boxes | None:
    """Return the boxes around those of all batches; None if they cover most of the maps."""
    boxes = batches[0].boxes
    if any(batch.boxes != boxes for batch in batches):
        axes: list[list[int]] = []
        size: list[int] = []
        for axis in (0, 1):
            spans = zip(*(batch.boxes.spans(axis) for batch in batches), strict=True)
            ends = [(min(s for s, _ in group), max(e for _, e in group)) for group in spans]
            size.append(max(end - start for start, end in ends))
            last = batches[0].shape[2 + axis] - size[axis]
            axes.append([min(start, last) for start, _ in ends])
        boxes = Boxes([*zip(*axes, strict=True)], tuple(size))
    return None if boxes.cover(batches[0].shape) else boxes


def _elementwise(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run what treats all cells alike: activation functions, sums of branches, scales."""
    batches = _batches((args, kwargs))
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    others = [tensor for tensor in tensors if not isinstance(tensor, WindowedBatch)]
    in_place = func.overloadpacket.__name__.endswith("_")
    if (
        len({batch.shape for batch in batches}) > 1
        or not all(map(_is_everywhere_alike, others))
        or "out" in kwargs
    ):
        return None
    boxes = _common(batches)
    if boxes is None:
        return None
    of_crops = tree_map_only(WindowedBatch, lambda batch: batch.cut(boxes), (args, kwargs))
    of_base = tree_map_only(WindowedBatch, lambda batch: batch.base, (args, kwargs))
    base, crops = (func(*values, **options) for values, options in (of_base, of_crops))
    if not in_place:
        return batches[0].like(base, crops, boxes)
    args[0].base, args[0].crops, args[0].boxes = base, crops, boxes
    return args[0]


def _is_everywhere_alike(tensor: Tensor) -> bool:
    """Whether a tensor is the same for all images and places: numbers, or one for each channel."""
    b, _, y, x = ((1,) * (4 - tensor.ndim) + tuple(tensor.shape))[:4]
    return tensor.ndim <= 4 and b == y == x == 1


def _normalization(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a batch norm with its running statistics."""
    batch, *others = args
    training = func.overloadpacket is not _WITHOUT_MODE and others[4]
    if training or not isinstance(batch, WindowedBatch):
        return None
    base, crops = (func(part, *others, **kwargs) for part in (batch.base, batch.cut(batch.boxes)))
    return batch.like(base[0], crops[0], batch.boxes), *base[1:]


def _concatenation(_: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Join channels."""
    parts, axis = (*args, kwargs.get("dim", 0))[:2]
    if axis not in (1, -3) or not all(isinstance(part, WindowedBatch) for part in parts):
        return None
    boxes = _common(parts)
    if boxes is None:
        return None
    base, crops = [part.base for part in parts], [part.cut(boxes) for part in parts]
    return parts[0].like(torch.cat(base, 1), torch.cat(crops, 1), boxes)


def _padding(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Add rows and columns of a constant around the maps."""
    batch, edges = args[:2]
    if len(edges) != 4 or min(edges) < 0:
        return None
    left, _, top, _ = edges
    corners = [(y + top, x + left) for y, x in batch.boxes.corners]
    base = func(batch.base, *args[1:], **kwargs)
    crops = batch.cut(batch.boxes).clone()  # either batch may be changed in place
    return batch.like(base, crops, Boxes(corners, batch.boxes.size))


def _convolution(func: Any, args: Sequence[Any], _: dict[str, Any]) -> Any:
    batch, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    if transposed or weight.ndim != 4 or not isinstance(batch, WindowedBatch):
        return None

    def run(part: Tensor, padding: Sequence[int]) -> Tensor:
        return func(
            part, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )

    steps = (pair(option, 2) for option in (stride, padding, dilation))
    return _sliding(batch, run, weight.shape[2:], *steps, fill=0.0)


def _max_pooling(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    batch, kernel, *options = args
    stride, padding, dilation, ceil = (*options, *([], 0, 1, False)[len(options) :])
    if ceil or kwargs:
        return None
    kernel = pair(kernel, 2)
    stride = pair(stride, 2) if stride else kernel
    dilation = pair(dilation, 2)

    def run(part: Tensor, padding: Sequence[int]) -> Tensor:
        return func(part, kernel, stride, padding, dilation)[0]

    pooled = _sliding(batch, run, kernel, stride, pair(padding, 2), dilation, fill=float("-inf"))
    # The second output are the indices of maxima in the whole map, which few networks read.
    return None if pooled is None else (pooled, batch.like(pooled.base, None, pooled.boxes))


def _mean_pooling(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    batch, kernel, *options = args
    defaults = ([], 0, False, True, None)
    stride, padding, ceil, counts_padding, divisor = (*options, *defaults[len(options) :])
    padding = pair(padding, 2)
    if kwargs or ceil or divisor is not None or (any(padding) and not counts_padding):
        return None
    kernel = pair(kernel, 2)
    stride = pair(stride, 2) if stride else kernel

    def run(part: Tensor, padding: Sequence[int]) -> Tensor:
        return func(part, kernel, stride, padding)

    return _sliding(batch, run, kernel, stride, padding, (1, 1), fill=0.0)


def _sliding(
    batch: WindowedBatch,
    run: Callable[[Tensor, Sequence[int]], Tensor],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    fill: float,
) -> WindowedBatch | None:
    """Run an operation with a kernel on base and boxes; None if these cover most of its output.

    Args:
        run: The operation on maps with a padding.
        fill: What the operation finds outside of the maps.
    """
    axes: list[tuple[list[int], int]] = []
    before: list[tuple[list[int], int]] = []  # what the boxes see
    shape: list[int] = []
    for axis in (0, 1):
        extent, step, edge = dilation[axis] * (kernel[axis] - 1) + 1, stride[axis], padding[axis]
        count = (batch.shape[2 + axis] + 2 * edge - extent) // step + 1
        # Output i sees the extent that begins at i * step - edge.
        spans = [
            (
                max(0, -((extent - 1 - edge - start) // step)),
                min(count, (end - 1 + edge) // step + 1),
            )
            for start, end in batch.boxes.spans(axis)
        ]
        size = max(1, *(end - start for start, end in spans))
        starts = [min(start, count - size) for start, _ in spans]
        axes.append((starts, size))
        before.append(([start * step - edge for start in starts], (size - 1) * step + extent))
        shape.append(count)
    after, inner = (
        Boxes([*zip(y, x, strict=True)], (height, width))
        for (y, height), (x, width) in (axes, before)
    )
    if after.cover(shape):
        return None
    crops = run(batch.cut(inner, padding, fill), (0, 0))
    return batch.like(run(batch.base, padding), crops, after)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(
        ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"),
        _normalization,
    ),
    "cat": _concatenation,
    "constant_pad_nd": _padding,
    "convolution": _convolution,
    "max_pool2d_with_indices": _max_pooling,
    "avg_pool2d": _mean_pooling,
}
