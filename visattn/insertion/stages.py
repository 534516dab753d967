"""Where a model goes from one resolution of features to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from visattn.insertion.feature_layout import Grid
from visattn.insertion.graft import runs_its_own_loop
from visattn.insertion.resolutions import Change, same_size
from visattn.insertion.trace_records import Trace

Part = Literal["", "encoder", "bottleneck", "decoder"]


@dataclass(frozen=True)
class Stage:
    """What runs at one resolution, between one change of it and the next.

    Args:
        grid: Height and width of its last features.
        part: Of a model that enlarges features again; empty in others.
        end: The module that returns its last features; None if a function makes them.
        whole: Whether no function, such as an activation, comes after that module.
        start: Order of the change that begins it, among all operations and calls of the run.
        stop: Order of the change that ends it.
    """

    grid: Grid
    part: Part
    end: str | None
    whole: bool = True
    start: float = -1
    stop: float = float("inf")

    def __str__(self) -> str:
        """Return its size, and its part if it has one."""
        return f"{self.grid[0]} x {self.grid[1]}" + (f" {self.part}" if self.part else "")

    def holds(self, grid: Grid, order: float) -> bool:
        """Return whether features of a size that were made at some time belong to it.

        Of a model that only makes features smaller, the size alone tells.
        """
        return same_size(grid, self.grid) and (not self.part or self.start < order <= self.stop)


def stages_of(trace: Trace, modules: Mapping[str, nn.Module]) -> list[Stage]:
    """Return the stages of a model, in order.

    Resolutions at which nothing is convolved are no stages; neither is the stem of a model with
    residual branches: resolutions before the first at which a branch is added, unless the module at
    their end is of one kind with the end of a later stage.

    Args:
        trace: Of a run of the model.
        modules: Of the model, by name.

    Raises:
        ValueError: If the resolution of the features goes down again after it went up.
    """
    steps, resized = _steps(trace)
    levels = _levels(trace, modules, steps)
    if not levels:
        return []
    reader = _StageReader(trace, modules, steps)
    turned = bool(steps) and steps[-1].grows
    made = resized.inner if resized else trace.made
    end = reader.output_end(made) if turned else reader.last_end(levels[-1], made)
    levels[-1] = replace(levels[-1], end=end)
    if turned and not reader.ends_in(levels[-1]):
        levels.pop()  # nothing but the last layer runs at this size
    worked = [stage for stage in levels if reader.works_at(stage)]
    while worked and trace.additions and reader.is_stem(worked[0], worked[1:]):
        worked.pop(0)
    return worked


def _steps(trace: Trace) -> tuple[list[Change], Change | None]:
    """Return the changes one after another, and that of the output of the model, if there is one.

    Raises:
        ValueError: If they do not follow one another, or go down after they went up.
    """
    steps: list[Change] = []
    for change in trace.changes:
        if not steps or same_size(change.before, steps[-1].after):
            turned = steps and steps[-1].grows and not change.grows
        elif same_size(change.before, steps[-1].before) and same_size(
            change.after, steps[-1].after
        ):
            continue  # another branch of the same step
        else:
            turned = True
        if turned:
            sizes = [steps[0].before, *(step.after for step in steps), change.before, change.after]
            raise ValueError(
                "this model has several paths of features, whose sizes follow one another as "
                + ", ".join(f"{y} x {x}" for y, x in sizes)
                + ": its stages cannot be told; name the sites"
            )
        steps.append(change)
    last = steps[-1] if steps else None
    if last and last.grows and not any(order >= last.order for _, order in trace.convolved):
        return steps[:-1], last  # scores that are enlarged are no features
    return steps, None


def _levels(trace: Trace, modules: Mapping[str, nn.Module], steps: list[Change]) -> list[Stage]:
    """Return what lies before, between and behind the steps; the end of the last is not known."""
    if not steps:
        grids = [addition.grid for addition in trace.additions]
        return [Stage(grids[-1], "", None)] if grids else []
    turn = next((n for n, step in enumerate(steps) if step.grows), None)
    wrappers = wrappers_of(steps)
    levels: list[Stage] = []
    for number in range(len(steps) + 1):
        step = steps[number] if number < len(steps) else None
        part: Part = ""
        if turn is not None:
            part = "encoder" if number < turn else "bottleneck" if number == turn else "decoder"
        end = _outermost(step.hosts, wrappers) if step else None
        if step and end and runs_its_own_loop(modules[end]):  # nothing can stand after it
            end = _outermost(step.inner, wrappers)
        levels.append(
            Stage(
                grid=step.before if step else steps[-1].after,
                part=part,
                end=end,
                whole=step.whole if step else True,
                start=steps[number - 1].order if number else -1,
                stop=step.order if step else float("inf"),
            )
        )
    return levels


def wrappers_of(steps: Sequence[Change]) -> set[str]:
    """Return the modules in which features change their size more than once, or not only once."""
    return {name for step in steps for name in step.within} | {""}


def _outermost(hosts: Sequence[str], wrappers: set[str]) -> str | None:
    """Return the outermost module that is no wrapper, or the outermost of all."""
    plain = [host for host in hosts if host not in wrappers]
    named = plain or [host for host in hosts if host]
    return named[-1] if named else None


class _StageReader:
    """What the modules at the end of stages are."""

    def __init__(
        self, trace: Trace, modules: Mapping[str, nn.Module], steps: Sequence[Change]
    ) -> None:
        self.trace, self.modules, self.steps = trace, modules, steps
        self.wrappers = wrappers_of(steps)

    def works_at(self, stage: Stage) -> bool:
        """Return whether something is convolved or added in a stage."""
        convolved = any(
            same_size(grid, stage.grid) and stage.start <= order <= stage.stop
            for grid, order in self.trace.convolved
        )
        return convolved or self._added(stage)

    def _added(self, stage: Stage) -> bool:
        return any(stage.holds(a.grid, a.order) for a in self.trace.additions)

    def is_stem(self, stage: Stage, later: Sequence[Stage]) -> bool:
        """Return whether a stage has no branch and ends unlike those after it."""
        kin = (other.end for other in later if other.end and stage.end)
        return not self._added(stage) and not any(self._alike(stage.end, end) for end in kin)

    def _alike(self, one: str | None, other: str | None) -> bool:
        """Return whether two modules with parts stand in one module and are of one class."""
        first, second = self.modules.get(one or ""), self.modules.get(other or "")
        if first is None or second is None or not any(True for _ in first.children()):
            return False
        beside = (one or "").rpartition(".")[0] == (other or "").rpartition(".")[0]
        return beside and type(first) is type(second)

    def _follows(self, one: str, other: str) -> bool:
        """Return whether two modules are of one kind: parts of a sequence, or alike inside too."""
        if not self._alike(one, other):
            return False
        parent = self.modules[one.rpartition(".")[0]]
        firsts = [next(iter(self.modules[name].children())) for name in (one, other)]
        return isinstance(parent, (nn.Sequential, nn.ModuleList)) or type(firsts[0]) is type(
            firsts[1]
        )

    def ends_in(self, stage: Stage) -> bool:
        """Return whether the end of a stage returns features of its size."""
        outputs = self.trace.outputs[stage.end] if stage.end else []
        return stage.end is None or any(
            stage.holds(o.grid, o.order) for o in outputs if o.shape[3:]
        )

    def last_end(self, stage: Stage, made: Sequence[str]) -> str | None:
        """Return the end of the last stage of a model that only makes features smaller.

        It is the last of the modules of one kind that follow one another there, so that a
        convolution that leads over to the classes is not taken for features.
        """
        last = self.steps[-1].module if self.steps else None
        if last and (run := self._run(last, stage)):
            return run
        if self._added(stage):
            end = self._residual_end(stage)
            return self._run(end, stage) or end if end else None
        pooled = [each for grid, each in self.trace.pooled.items() if stage.holds(grid, 0)]
        if not pooled:
            return self.output_end(made)
        hosts, order = pooled[-1]
        if self.trace.weighted < order and (features := self._before_scores(hosts)):
            return features
        return _outermost(hosts, self.wrappers)

    def _before_scores(self, hosts: Sequence[str]) -> str | None:
        """Return what the 1x1 convolution reads whose scores are pooled; None if there is none."""
        name = self._weighted(hosts)
        module = self.modules[name] if name else None
        if not name or not isinstance(module, nn.Conv2d) or max(module.kernel_size) > 1:
            return None
        return self._plain(self.trace.outputs[name][-1].source)

    def _run(self, name: str, stage: Stage) -> str | None:
        """Return the last of the modules of one kind that follow a module; None if it is alone."""
        parent = name.rpartition(".")[0]
        outer = self.modules.get(parent)
        beside = (
            [f"{parent}.{key}".lstrip(".") for key, _ in outer.named_children()] if outer else []
        )
        place = beside.index(name) if name in beside else 0
        run = name
        for other in beside[place + 1 :]:
            outputs = self.trace.outputs.get(other, [])
            if not self._follows(name, other) or not outputs or len(outputs[-1].shape) != 4:
                break
            if not same_size(outputs[-1].grid, stage.grid):
                break
            run = other
        alone = run == name and not (place and self._follows(name, beside[place - 1]))
        return None if alone else run

    def _residual_end(self, stage: Stage) -> str | None:
        """Return the outermost module with the last addition of a stage and none of others."""
        held: dict[str, bool] = {}
        last: tuple[str, ...] = ()
        for addition in self.trace.additions:
            inside = stage.holds(addition.grid, addition.order)
            last = addition.within if inside else last
            for name in addition.within:
                held[name] = held.get(name, True) and inside
        for name in last:
            grids = [out.grid for out in self.trace.outputs[name] if len(out.shape) == 4]
            if name and held[name] and grids and same_size(grids[-1], stage.grid):
                return name
        return None

    def output_end(self, made: Sequence[str]) -> str | None:
        """Return the module whose features the last layer with weights reads.

        If a function makes these, it is the module with that layer.
        """
        name = self._weighted(made)
        return name and (self._plain(self.trace.outputs[name][-1].source) or name)

    def _weighted(self, made: Sequence[str]) -> str | None:
        """Return the last module with weights; others, such as a softmax, may come after it."""
        name = self._plain(made)
        while name and not any(True for _ in self.modules[name].parameters()):
            name = self._plain(self.trace.outputs[name][-1].source)
        return name

    def _plain(self, hosts: Sequence[str]) -> str | None:
        plain = [host for host in hosts if host not in self.wrappers]
        return plain[-1] if plain else None
