"""Resolutions of a traced run: channel axes, spatial sizes, and where they change."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

Grid = tuple[int, int]

_CHANNELS_FIRST = frozenset(
    {"conv2d", "conv_transpose2d", "batch_norm", "group_norm", "instance_norm"}
)
_CHANNELS_LAST = frozenset({"linear"})
_LAYOUT_CHANGES = frozenset(
    {"reshape", "view", "flatten", "unflatten", "transpose", "swapaxes", "movedim", "unfold"}
)


def channels_last_after(
    name: str, args: tuple[Any, ...], channels_last: bool | None
) -> bool | None:
    """Return whether features are channels-last after a torch function; None if unknown.

    Example:
        >>> channels_last_after("permute", (None, 0, 2, 3, 1), False)
        True
        >>> channels_last_after("relu", (), True)
        True
    """
    if name in _CHANNELS_FIRST or name in _CHANNELS_LAST:
        return name in _CHANNELS_LAST
    if name == "permute":
        axes = cast("tuple[int, ...]", args[1] if isinstance(args[1], (tuple, list)) else args[1:])
        layouts: dict[tuple[int, ...], bool] = {(0, 2, 3, 1): True, (0, 3, 1, 2): False}
        return layouts.get(tuple(axes))
    return None if name in _LAYOUT_CHANGES else channels_last


def infer_channels_last(shape: tuple[int, ...], image: Grid | None) -> bool | None:
    """Return whether features of a shape are [b, y, x, c] rather than [b, c, y, x].

    Features keep the aspect ratio of the image, so the layout that preserves it better is chosen;
    None if both preserve it equally well. Without an image, channels-first is assumed.

    Example:
        >>> infer_channels_last((1, 14, 14, 384), (224, 224))
        True
        >>> print(infer_channels_last((1, 8, 8, 8), (64, 64)))
        None
    """
    if image is None:
        return False
    # How much the logarithm of the aspect ratio changes, in either layout.
    first, last = (
        abs(math.log(grid[0] / grid[1]) - math.log(image[0] / image[1]))
        for grid in (shape[2:], shape[1:3])
    )
    return None if math.isclose(first, last, abs_tol=1e-9) else last < first


def spatial_size(shape: tuple[int, ...], *, channels_last: bool | None) -> Grid:
    """Return height and width of features; channels-first if the layout is unknown.

    Example:
        >>> spatial_size((1, 5, 7, 3), channels_last=True)
        (5, 7)
    """
    return (shape[1], shape[2]) if channels_last else (shape[2], shape[3])


@dataclass(frozen=True)
class FeatureMap:
    """Metadata of a tensor that enters a module or function.

    Args:
        grid: Height and width of a 4-D tensor.
        hosts: Modules that returned the tensor, activations ignored, outermost last.
        direct: Whether they returned it directly, without a function in between.
        depth: Number of operations on the longest path from the input; 0 for the input.
    """

    shape: tuple[int, ...]
    grid: Grid | None
    hosts: tuple[str, ...] = ()
    direct: bool = True
    depth: int = 1


@dataclass(frozen=True)
class ResolutionChange:
    """Change of the spatial size in a function or module.

    Args:
        hosts: Modules that returned the input features, outermost last; none for a function.
        direct: Whether there is no function between these modules and the change.
        module: Outermost module that contains only this change; None for a function.
        inner: Like `hosts`, for the first function in that module that changes the size.
        within: Modules whose calls contain the change.
        order: Index of the change in the sequence of all operations and calls of the forward pass.
        entered: Index of the call of the module; 0 for a function.
    """

    before: Grid
    after: Grid
    hosts: tuple[str, ...] = ()
    direct: bool = True
    module: str | None = None
    inner: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    order: int = 0
    entered: int = 0

    @property
    def upsamples(self) -> bool:
        """Whether the features became larger."""
        return _area(self.after) > _area(self.before)


def same_size(size: Grid, other: Grid) -> bool:
    """Return whether two sizes have the same resolution: neither has twice the area of the other.

    An unpadded convolution crops a border, which does not change the resolution.

    Example:
        >>> same_size((63, 95), (61, 93)), same_size((64, 64), (32, 64))
        (True, False)
    """
    return 0.5 < _area(size) / _area(other) < 2


def _area(grid: Grid) -> int:
    return max(1, grid[0] * grid[1])


@dataclass
class _Frame:
    """Running call of a module, with the resolution changes since its start."""

    name: str
    inputs: list[FeatureMap]
    start: int
    entered: int = 0
    sequential: bool = False
    joined: bool = False
    detours: list[ResolutionChange] = field(default_factory=list[ResolutionChange])


class ResolutionTracker:
    """Collects the resolution changes of a forward pass, without detours inside modules.

    A module whose output has the shape of its input is a detour, such as attention over pooled
    keys, unless its upsampled features are joined with its input, as in a U-Net. Changes that form
    a single step, such as those of the branch and the shortcut of a residual unit, become the
    change of the outermost module that contains only this step, unless this module first computes
    features at the old resolution: then its input is not the last feature map of that resolution.
    """

    def __init__(self) -> None:
        self.changes: list[ResolutionChange] = []
        self.frames: list[_Frame] = []
        self.additions: list[tuple[int, str]] = []
        """Index and module of each residual addition."""
        self.convolutions: list[tuple[int, bool]] = []
        """Index of each convolution, and whether it mixes positions and all channels."""

    def record_change(self, features: FeatureMap, after: Grid, order: int) -> None:
        """Record that a function changes the spatial size of features."""
        before = features.grid
        if before is not None and not same_size(before, after):
            change = ResolutionChange(
                before,
                after,
                features.hosts,
                features.direct,
                inner=features.hosts,
                within=self._running_modules(),
                order=order,
            )
            self.changes.append(change)

    def record_join(self, *, concatenated: bool) -> None:
        """Record that features are added or concatenated."""
        inner = self.frames[-1] if self.frames else None
        if inner and concatenated and any(change.upsamples for change in inner.detours):
            self.changes = sorted([*self.changes, *inner.detours], key=lambda change: change.order)
            inner.detours = []
        for frame in self.frames:
            frame.joined |= any(change.upsamples for change in self.changes[frame.start :])

    def enter(
        self, name: str, inputs: Sequence[FeatureMap], order: int, *, sequential: bool
    ) -> None:
        """Record the call of a module with its input features."""
        self.frames.append(_Frame(name, list(inputs), len(self.changes), order, sequential))

    def leave(self, grid: Grid | None, shape: tuple[int, ...], order: int) -> list[FeatureMap]:
        """Record the return of the innermost running module; return its input features."""
        frame = self.frames.pop()
        if not frame.name:
            return frame.inputs
        inside = self.changes[frame.start :]
        inputs = [x for x in frame.inputs if x.depth > 0 and len(x.shape) > 2]
        # Smaller and back to the shape of the input: a detour, which says nothing of the model
        # around it. It is kept for a while, since a later concatenation may use what it enlarged.
        if inputs and not frame.joined and all(_preserves_shape(x, grid, shape) for x in inputs):
            del self.changes[frame.start :]
            if self.frames:
                self.frames[-1].detours += [*inside, *frame.detours]
        elif grid and grid != (1, 1) and (step := self._merge_changes(frame, inside, grid, order)):
            self.changes[frame.start :] = [step]
        return frame.inputs

    def _merge_changes(
        self, frame: _Frame, inside: list[ResolutionChange], grid: Grid, order: int
    ) -> ResolutionChange | None:
        """Return the change of a module whose changes form a single step."""
        # The branch and the shortcut of a unit each halve the size: two changes, which are one
        # step, that of the unit, and what stands before it is the end of a stage.
        #
        #     56 --> conv1, stride 2 --> conv2 --> + --> 28
        #      '---> 1 x 1, stride 2 ------------^
        inputs = [x for x in frame.inputs if x.grid and x.grid != (1, 1)]
        if not inside and len(inputs) == 1 and not same_size(inputs[0].grid or grid, grid):
            # No function was seen to change the size: the module itself is the step.
            inside = [
                ResolutionChange(inputs[0].grid or grid, grid, inner=inputs[0].hosts, order=order)
            ]
            inside = [replace(inside[0], entered=frame.entered)]
        if not inside or self._computes_before(frame, inside[0]):
            return None
        before = inside[0].before
        if not all(
            same_size(change.before, before) and same_size(change.after, grid) for change in inside
        ):
            return None
        for x in inputs:
            if x.grid and x.hosts and same_size(x.grid, before):
                source = {"before": x.grid, "hosts": x.hosts, "direct": x.direct}
                step = replace(inside[0], **source, after=grid, module=frame.name)
                return replace(step, within=self._running_modules(), entered=frame.entered)
        return None

    def _computes_before(self, frame: _Frame, change: ResolutionChange) -> bool:
        """Return whether a module computes features at the old resolution before a change.

        Operations of a residual unit before its addition belong to the change, and so do operations
        of the child module that contains the change.
        """
        additions = [order for order, _ in self.additions if frame.entered < order < change.entered]
        is_residual_unit = any(
            order > change.order and name == frame.name for order, name in self.additions
        )
        dense_convolutions = [
            dense for order, dense in self.convolutions if frame.entered < order < change.entered
        ]
        if frame.sequential:
            return bool(additions or dense_convolutions)
        return not is_residual_unit and bool(additions or any(dense_convolutions))

    def _running_modules(self) -> tuple[str, ...]:
        return tuple(frame.name for frame in self.frames)


def _preserves_shape(features: FeatureMap, grid: Grid | None, shape: tuple[int, ...]) -> bool:
    return features.shape == shape or (grid is not None and features.grid == grid)
