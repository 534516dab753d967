"""Stages of a model: layers at one spatial resolution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from visattn.insertion.inserted_block import has_custom_loop
from visattn.insertion.resolutions import Grid, ResolutionChange, same_size
from visattn.insertion.trace import Trace

Part = Literal["", "encoder", "bottleneck", "decoder"]


@dataclass(frozen=True)
class Stage:
    """Stage: what runs between two changes of resolution.

    Args:
        grid: Height and width of its last features.
        part: Part of a model that upsamples features again; empty for others.
        end: Module that returns its last features; None if a function does.
        direct: Whether no function, such as an activation, follows that module.
    """

    grid: Grid
    part: Part
    end: str | None
    direct: bool = True
    start: float = -1
    stop: float = float("inf")

    def __str__(self) -> str:
        """Return the size, and the part if there is one."""
        return f"{self.grid[0]} x {self.grid[1]}" + (f" {self.part}" if self.part else "")

    def contains(self, grid: Grid, order: float) -> bool:
        """Return whether features of this size and order belong to the stage."""
        return same_size(grid, self.grid) and (not self.part or self.start < order <= self.stop)


def find_stages(trace: Trace, modules: Mapping[str, nn.Module]) -> list[Stage]:
    """Return the stages of a model, in order.

    Resolutions at which nothing is convolved are no stages; neither is the stem of a model with
    residual branches: resolutions before the first at which a branch is added, unless the module at
    their end is of one kind with the end of a later stage.

    Raises:
        ValueError: If the resolution of the features goes down again after it went up.
    """
    steps, resized = _main_path(trace)
    levels = _resolution_levels(trace, modules, steps)
    if not levels:
        return []
    reader = _StageEnds(trace, modules, steps)
    upsampled = bool(steps) and steps[-1].upsamples
    output_modules = resized.inner if resized else trace.output_modules
    end = (
        reader.classifier_input(output_modules)
        if upsampled
        else reader.find_last_end(levels[-1], output_modules)
    )
    levels[-1] = replace(levels[-1], end=end)
    if upsampled and not reader.has_valid_end(levels[-1]):
        levels.pop()  # only the last layer runs at this size
    worked = [stage for stage in levels if reader.has_layers(stage)]
    while worked and trace.additions and reader.is_stem(worked[0], worked[1:]):
        worked.pop(0)
    return worked


def _main_path(trace: Trace) -> tuple[list[ResolutionChange], ResolutionChange | None]:
    """Return the resolution changes in sequence, and that of the output of the model, if any.

    Raises:
        ValueError: If they are not sequential, or downsample after upsampling.
    """
    steps: list[ResolutionChange] = []
    for change in trace.changes:
        if not steps or same_size(change.before, steps[-1].after):
            upsampled = steps and steps[-1].upsamples and not change.upsamples
        elif same_size(change.before, steps[-1].before) and same_size(
            change.after, steps[-1].after
        ):
            continue  # another branch of the same step
        else:
            upsampled = True
        if upsampled:
            sizes = [steps[0].before, *(step.after for step in steps), change.before, change.after]
            raise ValueError(
                "this model has several paths of features, whose sizes follow one another as "
                + ", ".join(f"{y} x {x}" for y, x in sizes)
                + ": its stages are ambiguous; pass the names of the sites"
            )
        steps.append(change)
    last = steps[-1] if steps else None
    if last and last.upsamples and not any(order >= last.order for _, order in trace.convolutions):
        return steps[:-1], last  # upsampled scores are no features
    return steps, None


def _resolution_levels(
    trace: Trace, modules: Mapping[str, nn.Module], steps: list[ResolutionChange]
) -> list[Stage]:
    """Return the stages between the changes, without the end of the last."""
    if not steps:
        grids = [addition.grid for addition in trace.additions]
        return [Stage(grids[-1], "", None)] if grids else []
    # The first step that enlarges ends the bottleneck. For sizes 56, 28, 14, 28, 56 it is step 2:
    #
    #     level   0        1        2           3        4
    #             56 -0->  28 -1->  14 -2->     28 -3->  56
    #             encoder  encoder  bottleneck  decoder  decoder
    turn = next((n for n, step in enumerate(steps) if step.upsamples), None)
    wrappers = multi_stage_modules(steps)
    levels: list[Stage] = []
    for number in range(len(steps) + 1):
        step = steps[number] if number < len(steps) else None
        part: Part = ""
        if turn is not None and number == turn:
            part = "bottleneck"
        elif turn is not None:
            part = "encoder" if number < turn else "decoder"
        end = _outermost(step.hosts, wrappers) if step else None
        if step and end and has_custom_loop(modules[end]):  # no block can be inserted after it
            end = _outermost(step.inner, wrappers)
        levels.append(
            Stage(
                grid=step.before if step else steps[-1].after,
                part=part,
                end=end,
                direct=step.direct if step else True,
                start=steps[number - 1].order if number else -1,
                stop=step.order if step else float("inf"),
            )
        )
    return levels


def multi_stage_modules(steps: Sequence[ResolutionChange]) -> set[str]:
    """Return the modules that contain more than one change of resolution."""
    return {name for step in steps for name in step.within} | {""}


def _outermost(hosts: Sequence[str], wrappers: set[str]) -> str | None:
    """Return the outermost module within one stage, or the outermost of all."""
    plain = [host for host in hosts if host not in wrappers]
    named = plain or [host for host in hosts if host]
    return named[-1] if named else None


class _StageEnds:
    """Modules at the end of stages."""

    def __init__(
        self, trace: Trace, modules: Mapping[str, nn.Module], steps: Sequence[ResolutionChange]
    ) -> None:
        self.trace = trace
        self.modules = modules
        self.steps = steps
        self.wrappers = multi_stage_modules(steps)

    def has_layers(self, stage: Stage) -> bool:
        """Return whether a stage has convolutions or additions."""
        convolved = any(
            same_size(grid, stage.grid) and stage.start <= order <= stage.stop
            for grid, order in self.trace.convolutions
        )
        return convolved or self._has_additions(stage)

    def _has_additions(self, stage: Stage) -> bool:
        return any(stage.contains(a.grid, a.order) for a in self.trace.additions)

    def is_stem(self, stage: Stage, later: Sequence[Stage]) -> bool:
        """Return whether a stage has no residual branch and ends unlike later ones."""
        kin = (other.end for other in later if other.end and stage.end)
        return not self._has_additions(stage) and not any(
            self._are_siblings(stage.end, end) for end in kin
        )

    def _are_siblings(self, first: str | None, other: str | None) -> bool:
        """Return whether two modules with parts stand in one module and are of one class."""
        module = self.modules.get(first or "")
        other_module = self.modules.get(other or "")
        if module is None or other_module is None or not any(True for _ in module.children()):
            return False
        beside = (first or "").rpartition(".")[0] == (other or "").rpartition(".")[0]
        return beside and type(module) is type(other_module)

    def _are_repeated(self, first: str, other: str) -> bool:
        """Return whether two modules are siblings in a sequence or alike in their first child."""
        if not self._are_siblings(first, other):
            return False
        parent = self.modules[first.rpartition(".")[0]]
        firsts = [next(iter(self.modules[name].children())) for name in (first, other)]
        return isinstance(parent, (nn.Sequential, nn.ModuleList)) or type(firsts[0]) is type(
            firsts[1]
        )

    def has_valid_end(self, stage: Stage) -> bool:
        """Return whether the end of a stage returns features of its size."""
        outputs = self.trace.outputs[stage.end] if stage.end else []
        return stage.end is None or any(
            stage.contains(o.grid, o.order) for o in outputs if o.shape[3:]
        )

    def find_last_end(self, stage: Stage, output_modules: Sequence[str]) -> str | None:
        """Return the end of the last stage of a model that only makes features smaller.

        It is the last of the modules of one kind that follow one another there, so that a
        convolution that leads over to the classes is not taken for features.
        """
        last = self.steps[-1].module if self.steps else None
        if last and (run := self._last_repeated(last, stage)):
            return run
        if self._has_additions(stage):
            end = self._residual_end(stage)
            return self._last_repeated(end, stage) or end if end else None
        pooled = [sources for grid, sources in self.trace.pooled.items() if stage.contains(grid, 0)]
        if not pooled:
            return self.classifier_input(output_modules)
        hosts, order = pooled[-1]
        if self.trace.last_weighted < order and (features := self._before_scores(hosts)):
            return features
        return _outermost(hosts, self.wrappers)

    def _before_scores(self, hosts: Sequence[str]) -> str | None:
        """Return the input of a 1x1 convolution whose scores are pooled; None if there is none."""
        name = self._last_weighted(hosts)
        module = self.modules[name] if name else None
        if not name or not isinstance(module, nn.Conv2d) or max(module.kernel_size) > 1:
            return None
        return self._innermost(self.trace.outputs[name][-1].source)

    def _last_repeated(self, name: str, stage: Stage) -> str | None:
        """Return the last of the modules of one kind that follow a module; None if it is alone."""
        parent = name.rpartition(".")[0]
        outer = self.modules.get(parent)
        beside = (
            [f"{parent}.{key}".lstrip(".") for key, _ in outer.named_children()] if outer else []
        )
        place = beside.index(name) if name in beside else 0
        # Of the children unit4, unit5, unit6 and conv7, the last that is like unit5 is unit6.
        run = name
        for other in beside[place + 1 :]:
            outputs = self.trace.outputs.get(other, [])
            if not self._are_repeated(name, other) or not outputs or len(outputs[-1].shape) != 4:
                break
            if not same_size(outputs[-1].grid, stage.grid):
                break
            run = other
        alone = run == name and not (place and self._are_repeated(name, beside[place - 1]))
        return None if alone else run

    def _residual_end(self, stage: Stage) -> str | None:
        """Return the outermost module with the last addition of a stage and none of others."""
        contained: dict[str, bool] = {}
        last: tuple[str, ...] = ()
        for addition in self.trace.additions:
            inside = stage.contains(addition.grid, addition.order)
            last = addition.within if inside else last
            for name in addition.within:
                contained[name] = contained.get(name, True) and inside
        # From the outermost module to the innermost.
        for name in last:
            grids = [out.grid for out in self.trace.outputs[name] if len(out.shape) == 4]
            if name and contained[name] and grids and same_size(grids[-1], stage.grid):
                return name
        return None

    def classifier_input(self, output_modules: Sequence[str]) -> str | None:
        """Return the module whose features the last layer with weights reads.

        If a function makes these, it is the module with that layer.
        """
        name = self._last_weighted(output_modules)
        return name and (self._innermost(self.trace.outputs[name][-1].source) or name)

    def _last_weighted(self, output_modules: Sequence[str]) -> str | None:
        """Return the last module with weights; others, such as a softmax, may come after it."""
        name = self._innermost(output_modules)
        while name and not any(True for _ in self.modules[name].parameters()):
            name = self._innermost(self.trace.outputs[name][-1].source)
        return name

    def _innermost(self, hosts: Sequence[str]) -> str | None:
        plain = [host for host in hosts if host not in self.wrappers]
        return plain[-1] if plain else None
