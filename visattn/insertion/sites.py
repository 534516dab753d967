"""Insertion sites: modules after which a block can be inserted, their selection and signals."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from visattn.insertion.inserted_block import (
    CHILD_NAME,
    GatingSignal,
    InsertedBlock,
    check_aspect_ratio,
    get_inserted,
    has_custom_loop,
    named_modules,
)
from visattn.insertion.resolutions import Grid, same_size
from visattn.insertion.stages import Part, Stage, find_stages
from visattn.insertion.trace import Trace
from visattn.io.messages import did_you_mean

_MAX_LISTED = 12
"""Number of candidates listed in an error message."""


@dataclass(frozen=True)
class Site:
    """Module after which a block is inserted.

    Args:
        grid: Height and width of its output.
        stage: Number of its stage, from 1; None before the first.
        num_calls: Number of calls per forward pass.
        part: `encoder`, `bottleneck` or `decoder` in a model that upsamples features again.
    """

    name: str
    channels: int
    grid: Grid
    channels_last: bool
    stage: int | None
    num_calls: int
    device: torch.device
    part: Part = ""

    def __str__(self) -> str:
        """Return the name, the shape of the features and the part of the model."""
        text = f"{self.name}  {self.channels} x {self.grid[0]} x {self.grid[1]}"
        return f"{text}  {self.part}" if self.part else text


class NotAFeatureMapError(ValueError):
    """The output of a module is not a feature map."""


def make_site(
    host: nn.Module,
    name: str,
    trace: Trace,
    stages: list[Stage],
    *,
    selected_by_pattern: bool = False,
) -> Site:
    """Return the site after a module.

    Raises:
        ValueError: If no block can be inserted there, with the reason.
    """
    _check_host(host, name, trace, selected_by_pattern=selected_by_pattern)
    outputs = trace.outputs[name]
    first = outputs[0]
    if first.channels_last is None:
        raise ValueError(
            f"no block can be inserted after {name}: the channel axis is ambiguous in features "
            f"of shape {list(first.shape)}; pass an example of another size or aspect ratio"
        )
    widths = [output.shape[3 if output.channels_last else 1] for output in outputs]
    if len(set(widths)) > 1:
        error_type = NotAFeatureMapError if selected_by_pattern else ValueError
        raise error_type(
            f"no block can be inserted after {name}: it runs {len(widths)} times with {widths} "
            "channels, but a block has a fixed number; choose a module that runs once"
        )
    device = first.device or torch.device("cpu")
    stage = stage_number(name, trace, stages)
    part = stages[stage - 1].part if stage else ""
    calls = len(outputs)
    return Site(name, widths[0], first.grid, first.channels_last, stage, calls, device, part)


def stage_number(name: str, trace: Trace, stages: list[Stage]) -> int | None:
    """Return the number of the stage of a module's output; None if there is none."""
    outputs = trace.outputs.get(name, [])
    if not outputs or len(outputs[0].shape) != 4:
        return None
    matches = (n for n, s in enumerate(stages, 1) if s.contains(outputs[0].grid, outputs[0].order))
    return next(matches, None)


def describe_candidates(
    trace: Trace, modules: Mapping[str, nn.Module], grid: Grid | None = None
) -> str:
    """Return the modules after which a block can be inserted, as the end of an error message.

    With `grid` only those of this resolution are listed.
    """
    sites: dict[str, str] = {}
    for name, outputs in trace.outputs.items():
        sizes = {output.grid for output in outputs if len(output.shape) == 4}
        if not name or (grid and not any(same_size(size, grid) for size in sizes)):
            continue
        try:
            site = make_site(modules[name], name, trace, [], selected_by_pattern=True)
        except ValueError:
            continue
        runs = f" ({site.num_calls} runs)" if site.num_calls > 1 else ""
        sites[name] = f"{site.name} {site.channels} x {site.grid[0]} x {site.grid[1]}{runs}"
    # List outer modules first; their children are left out.
    outer = sorted(sites, key=lambda name: name.count("."))[:_MAX_LISTED]
    if not sites:
        return ""
    lines = [sites[name] for name in sites if name in outer]
    more = f", and {len(sites) - len(lines)} more" if len(sites) > len(lines) else ""
    return f". Modules that return feature maps: {', '.join(lines)}{more}"


def _check_host(host: nn.Module, name: str, trace: Trace, *, selected_by_pattern: bool) -> None:
    """Raise unless a block can be inserted after a module."""
    outputs = trace.outputs.get(name, [])
    error_type = NotAFeatureMapError if selected_by_pattern else ValueError
    if has_custom_loop(host):
        reason = (
            f"it is a {type(host).__name__} whose children run in a custom loop, which would run "
            "the block as one of them; choose one of its children, or the next module"
        )
    elif not outputs:
        reason = "it does not run in this model, or is a plain container; choose a module that runs"
    elif odd := next((o for o in outputs if len(o.shape) != 4 or not o.is_floating_point), None):
        returned = list(odd.shape) if odd.type_name == "Tensor" else f"a {odd.type_name}"
        reason = (
            f"it returns {returned}, but a block needs features [batch, channels, height, width]"
        )
    elif selected_by_pattern and all(output.grid == (1, 1) for output in outputs):
        reason = "it returns 1 x 1 features, which are no feature map"
    elif (inserted := get_inserted(host)) is not None:
        error_type = ValueError
        reason = (
            f"it already has {' and '.join(inserted.names)}; remove(model) removes it, and a "
            "list of blocks inserts several at one site"
        )
    elif hasattr(host, CHILD_NAME):
        reason = f"it has its own attribute {CHILD_NAME}"
    else:
        return
    raise error_type(f"no block can be inserted after {name}: {reason}")


Position = str | Sequence[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class SiteSelection:
    """Selected sites.

    Args:
        notes: Remarks: modules that matched a pattern but cannot hold a block, a function after the
            module at the end of a stage.
    """

    sites: tuple[Site, ...]
    notes: tuple[str, ...] = ()


def select_sites(
    model: nn.Module, trace: Trace, position: Position, stages: Iterable[int] | None = None
) -> SiteSelection:
    """Return the selected sites in the order of their first call.

    Args:
        position: `residual`, `stage_end`, a pattern of names in which `*` matches one component and
            `**` any number, a list of names, or a predicate of name and module. Modules matched by
            a pattern or predicate that return no feature map are skipped.
        stages: Numbers of the stages to use, from 1; all if None.

    Raises:
        ValueError: If there is no such site or stage, or if a site cannot hold a block.
    """
    modules = _modules_inside(model)
    all_stages = _find_stages(
        trace, {"": model, **modules}, strict=position == "stage_end" or stages is not None
    )
    selected = _check_stages(stages, all_stages)
    names, notes = _matching_modules(modules, trace, position, all_stages, selected)
    ran = {name: number for number, name in enumerate(trace.outputs)}
    names = sorted(set(names), key=lambda name: ran.get(name, -1))
    if selected is not None:  # ignore modules in other stages
        names = [
            name for name in names if stage_number(name, trace, all_stages) in {None, *selected}
        ]
    # Whether it may match modules that the user does not list.
    is_pattern = callable(position) or (
        isinstance(position, str) and any(sign in position for sign in "*?[")
    )
    sites, skipped = _make_sites(names, modules, trace, all_stages, selected_by_pattern=is_pattern)
    sites_in_stages = [site for site in sites if selected is None or site.stage in selected]
    if not sites_in_stages:
        where = f" in stages {sorted(selected)}" if selected else ""
        raise ValueError(
            f"there is no site for position={position!r}{where}"
            + (f": {_format_skipped(skipped)}" if skipped else "")
            + describe_candidates(trace, modules)
        )
    return SiteSelection(
        tuple(sites_in_stages),
        (*notes, *([f"skipped {_format_skipped(skipped)}"] if skipped else ())),
    )


def _modules_inside(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a model by name, but not the model itself and inserted blocks."""
    modules = named_modules(model, include_inserted=False)
    return {name: module for name, module in modules.items() if name}


def _make_sites(
    names: Iterable[str],
    modules: Mapping[str, nn.Module],
    trace: Trace,
    stages: list[Stage],
    *,
    selected_by_pattern: bool,
) -> tuple[list[Site], dict[str, str]]:
    """Return the sites after modules, and the reasons for skipped modules."""
    sites: list[Site] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            site = make_site(
                modules[name], name, trace, stages, selected_by_pattern=selected_by_pattern
            )
            sites.append(site)
        except NotAFeatureMapError as error:
            skipped[name] = str(error).partition(": ")[2].partition(", but ")[0]
    return sites, skipped


def _format_skipped(skipped: dict[str, str]) -> str:
    """Return the first skipped modules, with their reasons."""
    lines = [f"{name}: {reason}" for name, reason in list(skipped.items())[:4]]
    more = len(skipped) - len(lines)
    return "; ".join([*lines, *([f"and {more} more"] if more else [])])


def _find_stages(trace: Trace, modules: dict[str, nn.Module], *, strict: bool) -> list[Stage]:
    """Return the stages of a model; none if they are ambiguous and not needed."""
    try:
        return find_stages(trace, modules)
    except ValueError as error:
        if strict:
            raise ValueError(f"{error}{describe_candidates(trace, modules)}") from None
        return []


def _check_stages(stages: Iterable[int] | None, all_stages: list[Stage]) -> set[int] | None:
    selected = None if stages is None else set(stages)
    if selected is not None and (
        not selected or not selected <= set(range(1, len(all_stages) + 1))
    ):
        sizes = ", ".join(f"{number}: {stage}" for number, stage in enumerate(all_stages, 1))
        raise ValueError(
            f"stages must be among those of this model ({sizes}), got {sorted(selected)}; stages "
            "of equal resolution count as one, so use a large enough example"
        )
    return selected


def _matching_modules(
    modules: dict[str, nn.Module],
    trace: Trace,
    at: Position,
    stages: list[Stage],
    selected: set[int] | None,
) -> tuple[list[str], list[str]]:
    """Return the names of the selected modules, and remarks about them."""
    if at == "stage_end":
        return _stage_ends(modules, trace, stages, selected)
    if at == "residual":
        names = [addition.branch for addition in trace.additions if addition.branch]
        reason = (
            "no module's output is the residual branch of an addition; use stage_end, or a "
            "pattern of names" + describe_candidates(trace, modules)
        )
    elif isinstance(at, str):
        names = [name for name in modules if compile_pattern(at).fullmatch(name)]
        reason = f"no module has such a name; {suggest_names(at, modules)}"
    elif callable(at):
        names = [name for name, module in modules.items() if at(name, module)]
        reason = "the predicate matches no module"
    else:
        names = list(at)
        if missing := [name for name in names if name not in modules]:
            raise ValueError(
                f"position: there is no module {missing[0]!r}; {suggest_names(missing[0], modules)}"
            )
        reason = "the list of names is empty"
    if not names:
        raise ValueError(f"there is no site for position={at!r}: {reason}")
    return names, []


def _stage_ends(
    modules: dict[str, nn.Module], trace: Trace, stages: list[Stage], selected: set[int] | None
) -> tuple[list[str], list[str]]:
    """Return the module at the end of each selected stage.

    Raises:
        ValueError: If there is no stage, or if a stage has no module of its own.
    """
    if not stages:
        raise ValueError(
            "this model has no stages: nothing in it downsamples features; pass the names of the "
            "sites" + describe_candidates(trace, modules)
        )
    names: list[str] = []
    notes: list[str] = []
    for number, stage in enumerate(stages, 1):
        if selected is not None and number not in selected:
            continue
        label = f"stage {number}, of {stage} features,"
        reason = ""
        if stage.end is None:
            reason = "ends with a function, so no module returns its last features"
        elif any(
            not stage.contains(o.grid, o.order) for o in trace.outputs[stage.end] if o.shape[3:]
        ):
            reason = f"ends with {stage.end}, which runs in other stages too"
        if reason or stage.end is None:
            advice = "pass the names of the sites" + (
                "" if len(stages) == 1 else ", or choose other stages"
            )
            raise ValueError(
                f"{label} {reason}; {advice}{describe_candidates(trace, modules, stage.grid)}"
            )
        names.append(stage.end)
        if not stage.direct:
            notes.append(
                f"{label} ends with a function, such as an activation, after {stage.end}: the "
                "block is inserted before it"
            )
    return names, notes


def compile_pattern(at: str) -> re.Pattern[str]:
    """Compile a pattern of names: `*` within a component, `**` across, `?`, `[...]`."""
    marks = {"**.": r"(?:.+\.)?", "**": ".*", "*": r"[^.]*", "?": r"[^.]"}
    parts = re.split(r"(\*\*\.|\*\*|\*|\?|\[[^\]]+\])", at)
    return re.compile(
        "".join(
            marks.get(token) or (token if token.startswith("[") else re.escape(token))
            for token in parts
        )
    )


def suggest_names(name: str, modules: dict[str, nn.Module]) -> str:
    """Return similar module names and keywords, as part of an error message."""
    return did_you_mean(name, ["residual", "stage_end", *modules], cutoff=0.5)


@dataclass(frozen=True)
class SignalSource:
    """Source of the gating signal of a site."""

    signal: GatingSignal
    channels: int
    grid: Grid


def find_signal_source(model: nn.Module, trace: Trace, site: Site, name: str) -> SignalSource:
    """Return the source of the gating signal of a site.

    Raises:
        ValueError: If there is no such module, if it returns no feature map, if it does not run
            before the site each time, or if its aspect ratio does not match.
    """
    modules = _modules_inside(model)
    if name not in modules:
        raise ValueError(
            f"there is no module {name!r} for the signal; {suggest_names(name, modules)}"
        )
    if name == site.name:
        raise ValueError(
            f"signal={name!r} is the site itself: pass the name of a module of a coarser level "
            "that runs before it"
        )
    outputs = trace.outputs.get(name, [])
    widths = {
        output.shape[3 if output.channels_last else 1] for output in outputs if output.shape[3:]
    }
    if len(widths) != 1 or any(len(o.shape) != 4 or not o.is_floating_point for o in outputs):
        returned = (
            " and ".join(str(list(o.shape) or f"a {o.type_name}") for o in outputs) or "nothing"
        )
        raise ValueError(
            f"a signal must be a feature map [batch, channels, height, width], but {name} "
            f"returns {returned}"
        )
    _check_order(trace, site, name)
    first = outputs[0]
    check_aspect_ratio(site.grid, first.grid, {"site": site.name, "signal": name})
    signal = GatingSignal(name, modules[name], channels_last=first.channels_last is True)
    return SignalSource(signal, widths.pop(), first.grid)


def _check_order(trace: Trace, site: Site, name: str) -> None:
    """Raise unless the source runs once before each run of the site."""
    source_calls = [output.order for output in trace.outputs[name]]
    site_calls = [output.order for output in trace.outputs[site.name]]
    # The source and the site must take turns: a signal is used up by the next run of the site.
    turns = sorted([(order, 0) for order in source_calls] + [(order, 1) for order in site_calls])
    same_number = len(source_calls) == len(site_calls)
    if not same_number or [who for _, who in turns] != [0, 1] * len(source_calls):
        when = f"{name} runs a different number of times"
        if min(source_calls) > min(site_calls):
            when = f"{name} runs after it"
        raise ValueError(
            f"the signal of {site.name} must come from a module that runs before it, once per "
            f"call, but {when}; put an nn.Identity() where the skip enters the decoder, after "
            f"{name}, and insert the block there"
        )


def check_signal_source(inserted_block: nn.Module, inputs: tuple[Tensor]) -> None:
    """Raise if the gating signal is the tensor that it gates; a forward pre-hook.

    Raises:
        ValueError: If the signal shares memory and shape with the features.
    """
    signal = inserted_block.signal if isinstance(inserted_block, InsertedBlock) else None
    for output in signal.outputs.values() if signal else ():
        if output.data_ptr() == inputs[0].data_ptr() and output.shape == inputs[0].shape:
            raise ValueError(
                f"the signal from {signal.name if signal else ''} is the tensor that it gates: "
                "pass the name of a module of a coarser level"
            )
