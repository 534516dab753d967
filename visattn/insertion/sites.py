"""Where in a model a block can stand, and which of these places somebody means."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from visattn.insertion.graft import modules_of
from visattn.insertion.hosts import NoFeatureMapError, Site, candidates, site_at, stage_number
from visattn.insertion.stages import Stage, stages_of
from visattn.insertion.trace_records import Trace

Where = str | Sequence[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Choice:
    """What was selected.

    Args:
        sites: In the order in which they first ran.
        notes: What the user may not expect, a line each: modules that a pattern matched and at
            which no block can stand, a function after the module at the end of a stage.
    """

    sites: tuple[Site, ...]
    notes: tuple[str, ...] = ()


def chosen_sites(
    model: nn.Module, trace: Trace, at: Where, stages: Iterable[int] | None = None
) -> Choice:
    """Return the sites that are meant, in the order in which they first ran.

    Args:
        model: That was traced.
        trace: What was seen.
        at: `residual`, `stage_end`, a pattern of names in which `*` stands for one part and `**`
            for any number, a list of names, or a function of a name and its module. What a pattern
            or a function selects and what returns no feature map is skipped.
        stages: Numbers of the stages that count, from 1; all if None.

    Raises:
        ValueError: If there is no such site or stage, or if no block can stand at one.
    """
    modules = {name: module for name, module in modules_of(model, ours=False).items() if name}
    known = _stages(trace, {"": model, **modules}, strict=at == "stage_end" or stages is not None)
    wanted = _wanted(stages, known)
    names, notes = _meant(modules, trace, at, known, wanted)
    ran = {name: number for number, name in enumerate(trace.outputs)}
    names = sorted(set(names), key=lambda name: ran.get(name, -1))
    if wanted is not None:  # what stands in other stages is none of its business
        names = [name for name in names if stage_number(name, trace, known) in {None, *wanted}]
    found: list[Site] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            found.append(site_at(modules[name], name, trace, known, loose=_is_loose(at)))
        except NoFeatureMapError as error:
            skipped[name] = str(error).partition(": ")[2].partition(", and ")[0]
    kept = [site for site in found if wanted is None or site.stage in wanted]
    if not kept:
        where = f" in stages {sorted(wanted)}" if wanted else ""
        raise ValueError(
            f"there is no site at={at!r}{where}"
            + (f": {_listed(skipped)}" if skipped else "")
            + candidates(trace, modules)
        )
    return Choice(tuple(kept), (*notes, *([f"skipped {_listed(skipped)}"] if skipped else ())))


def _is_loose(at: Where) -> bool:
    """Return whether a choice may match more than the user has looked at."""
    return (isinstance(at, str) and any(sign in at for sign in "*?[")) or callable(at)


def _listed(skipped: dict[str, str]) -> str:
    """Return modules that were skipped, with the reason of each; the first few of many."""
    lines = [f"{name}: {reason}" for name, reason in list(skipped.items())[:4]]
    more = len(skipped) - len(lines)
    return "; ".join([*lines, *([f"and {more} more"] if more else [])])


def _stages(trace: Trace, modules: dict[str, nn.Module], *, strict: bool) -> list[Stage]:
    """Return the stages of a model; none if they cannot be told and nobody needs them."""
    try:
        return stages_of(trace, modules)
    except ValueError as error:
        if strict:
            raise ValueError(f"{error}{candidates(trace, modules)}") from None
        return []


def _wanted(stages: Iterable[int] | None, known: list[Stage]) -> set[int] | None:
    wanted = None if stages is None else set(stages)
    if wanted is not None and (not wanted or not wanted <= set(range(1, len(known) + 1))):
        sizes = ", ".join(f"{number}: {stage}" for number, stage in enumerate(known, 1))
        raise ValueError(
            f"stages must be some of those that this model has ({sizes}), got {sorted(wanted)}; "
            "stages of one size are one stage, so see that the example is large enough"
        )
    return wanted


def _meant(
    modules: dict[str, nn.Module],
    trace: Trace,
    at: Where,
    stages: list[Stage],
    wanted: set[int] | None,
) -> tuple[list[str], list[str]]:
    """Return the names of the modules that are meant, and what is to be said of them."""
    if at == "stage_end":
        return _stage_ends(modules, trace, stages, wanted)
    if at == "residual":
        names = [addition.branch for addition in trace.additions if addition.branch]
        reason = (
            "no module's output is the residual branch of an addition; say stage_end, or give a "
            "pattern of names" + candidates(trace, modules)
        )
    elif isinstance(at, str):
        names = [name for name in modules if _pattern(at).fullmatch(name)]
        reason = f"no module is named so; {close_names(at, modules)}"
    elif callable(at):
        names = [name for name, module in modules.items() if at(name, module)]
        reason = "the function took none of the modules"
    else:
        names = list(at)
        if missing := [name for name in names if name not in modules]:
            raise ValueError(
                f"there is no module {missing[0]!r}; {close_names(missing[0], modules)}"
            )
        reason = "the list of names is empty"
    if not names:
        raise ValueError(f"there is no site at={at!r}: {reason}")
    return names, []


def _stage_ends(
    modules: dict[str, nn.Module], trace: Trace, stages: list[Stage], wanted: set[int] | None
) -> tuple[list[str], list[str]]:
    """Return the module at the end of each stage that is wanted.

    Raises:
        ValueError: If there is no stage, or if one has no module of its own.
    """
    if not stages:
        raise ValueError(
            "this model has no stages: nothing in it makes features smaller; name the sites"
            + candidates(trace, modules)
        )
    names: list[str] = []
    notes: list[str] = []
    for number, stage in enumerate(stages, 1):
        if wanted is not None and number not in wanted:
            continue
        said = f"stage {number}, of {stage} features,"
        reason = ""
        if stage.end is None:
            reason = "ends with a function, and no module returns its last features"
        elif any(not stage.holds(o.grid, o.order) for o in trace.outputs[stage.end] if o.shape[3:]):
            reason = f"ends with {stage.end}, which runs in other stages too"
        if reason or stage.end is None:
            advice = "name the sites" + ("" if len(stages) == 1 else ", or choose other stages")
            raise ValueError(f"{said} {reason}; {advice}{candidates(trace, modules, stage.grid)}")
        names.append(stage.end)
        if not stage.whole:
            notes.append(
                f"{said} ends with a function, such as an activation, after {stage.end}: the block "
                "stands before it"
            )
    return names, notes


def _pattern(at: str) -> re.Pattern[str]:
    """Return what names must match: `*` within a part, `**` over parts, `?`, `[...]`."""
    marks = {"**.": r"(?:.+\.)?", "**": ".*", "*": r"[^.]*", "?": r"[^.]"}
    parts = re.split(r"(\*\*\.|\*\*|\*|\?|\[[^\]]+\])", at)
    return re.compile(
        "".join(
            marks.get(part) or (part if part.startswith("[") else re.escape(part)) for part in parts
        )
    )


def close_names(name: str, modules: dict[str, nn.Module]) -> str:
    """Return the modules whose names are close to a name, as part of an error."""
    close = difflib.get_close_matches(name, ["residual", "stage_end", *modules], n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"its modules are named as {', '.join(list(modules)[:3])}, and the words are residual "
        "and stage_end"
    )
