"""Where the features of a running model become smaller or larger, on its main path."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from visattn.insertion.feature_layout import Grid


@dataclass(frozen=True)
class Features:
    """What is known of a tensor that a module or a function takes.

    Args:
        shape: Of the tensor.
        grid: Height and width, if it has four axes.
        hosts: Modules that returned it, before any activation function, the outermost last.
        whole: Whether they returned it as it is, with no function after them.
        depth: Operations on the longest way from the input; 0 for the input.
    """

    shape: tuple[int, ...]
    grid: Grid | None
    hosts: tuple[str, ...] = ()
    whole: bool = True
    depth: int = 1


@dataclass(frozen=True)
class Change:
    """Features of one size that became features of another, in a function or a module.

    Args:
        before: Height and width of the features that came in.
        after: Height and width of those that went out.
        hosts: Modules that made those that came in, the outermost last; none if a function did.
        whole: Whether no function stands between them and the change.
        module: The outermost module in which nothing but this change happens; None for a function.
        inner: As `hosts`, of the first function in that module that makes the change.
        within: Modules that were running around it.
        order: Of the change among all operations and calls of the run.
        entered: Order at which the module was called; of a function, that of the change.
    """

    before: Grid
    after: Grid
    hosts: tuple[str, ...] = ()
    whole: bool = True
    module: str | None = None
    inner: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    order: int = 0
    entered: int = 0

    @property
    def grows(self) -> bool:
        """Whether the features became larger."""
        return _area(self.after) > _area(self.before)


def same_size(one: Grid, other: Grid) -> bool:
    """Return whether two grids belong to one resolution: neither has twice the places of the other.

    A convolution without padding takes a border away; that is no change of resolution.

    Example:
        >>> same_size((63, 95), (61, 93)), same_size((64, 64), (32, 64))
        (True, False)
    """
    return 0.5 < _area(one) / _area(other) < 2


def _area(grid: Grid) -> int:
    return max(1, grid[0] * grid[1])


@dataclass
class _Frame:
    name: str
    took: list[Features]
    start: int
    entered: int = 0
    sequential: bool = False
    joined: bool = False
    detours: list[Change] = field(default_factory=list[Change])


class ResolutionTracker:
    """Collect the changes of resolution of a run, and leave out the detours inside of modules.

    A module that gives features of the shape that it took has made a detour, as attention over
    pooled keys does, unless what it enlarged is joined with what it took, as in a U-Net. Changes
    that are one step, as those of the branches and the shortcut of a residual unit, become the
    change of the outermost module that makes this step and no other, unless it computes more
    features of the former size first: then those that it takes are not the last.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.frames: list[_Frame] = []
        self.added: list[tuple[int, str]] = []
        """Orders of additions of branches, each with the module that makes it."""
        self.convolved: list[tuple[int, bool]] = []
        """Orders of convolutions, and whether each mixes places as well as all channels."""

    def note(self, features: Features, after: Grid, order: int) -> None:
        """Note that a function made features of another size."""
        before = features.grid
        if before is not None and not same_size(before, after):
            made = features.hosts, features.whole
            names = self._names()
            change = Change(before, after, *made, inner=features.hosts, within=names, order=order)
            self.changes.append(change)

    def note_join(self, *, whole: bool) -> None:
        """Note that features were added to others, or concatenated with them.

        Args:
            whole: Whether they were concatenated, so that those of a detour live on beside them.
        """
        inner = self.frames[-1] if self.frames else None
        if inner and whole and any(change.grows for change in inner.detours):
            self.changes = sorted([*self.changes, *inner.detours], key=lambda each: each.order)
            inner.detours = []
        for frame in self.frames:
            frame.joined |= any(change.grows for change in self.changes[frame.start :])

    def enter(self, name: str, took: Sequence[Features], order: int, *, sequential: bool) -> None:
        """Note that a module was called with features."""
        self.frames.append(_Frame(name, list(took), len(self.changes), order, sequential))

    def leave(self, grid: Grid | None, shape: tuple[int, ...], order: int) -> list[Features]:
        """Note that the module that was called last returned; return what it had taken."""
        frame = self.frames.pop()
        if not frame.name:
            return frame.took
        inside = self.changes[frame.start :]
        main = [each for each in frame.took if each.depth > 0 and len(each.shape) > 2]
        if main and not frame.joined and all(_keeps(each, grid, shape) for each in main):
            del self.changes[frame.start :]
            if self.frames:
                self.frames[-1].detours += [*inside, *frame.detours]
        elif grid and grid != (1, 1) and (step := self._step(frame, inside, grid, order)):
            self.changes[frame.start :] = [step]
        return frame.took

    def _step(self, frame: _Frame, inside: list[Change], grid: Grid, order: int) -> Change | None:
        """Return the change of a module that makes one step."""
        took = [each for each in frame.took if each.grid and each.grid != (1, 1)]
        if not inside and len(took) == 1 and not same_size(took[0].grid or grid, grid):
            inside = [Change(took[0].grid or grid, grid, inner=took[0].hosts, order=order)]
            inside = [replace(inside[0], entered=frame.entered)]
        if not inside or self._works_before(frame, inside[0]):
            return None
        before = inside[0].before
        if not all(same_size(c.before, before) and same_size(c.after, grid) for c in inside):
            return None
        for each in took:
            if each.grid and each.hosts and same_size(each.grid, before):
                ends = {"before": each.grid, "hosts": each.hosts, "whole": each.whole}
                step = replace(inside[0], **ends, after=grid, module=frame.name)
                return replace(step, within=self._names(), entered=frame.entered)
        return None

    def _works_before(self, frame: _Frame, change: Change) -> bool:
        """Return whether a module computes more features of the former size before a change.

        What a residual unit does before its addition belongs to the change, and so does what a
        part does in which the change happens.
        """
        added = [order for order, _ in self.added if frame.entered < order < change.entered]
        unit = any(order > change.order and name == frame.name for order, name in self.added)
        convolved = [
            dense for order, dense in self.convolved if frame.entered < order < change.entered
        ]
        if frame.sequential:
            return bool(added or convolved)
        return not unit and bool(added or any(convolved))

    def _names(self) -> tuple[str, ...]:
        return tuple(frame.name for frame in self.frames)


def _keeps(features: Features, grid: Grid | None, shape: tuple[int, ...]) -> bool:
    return features.shape == shape or (grid is not None and features.grid == grid)
