"""Where in a model a block can stand, and which of these places somebody means."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from visattn.blocks.surgery.grafts import CHILD, graft_of, modules_of
from visattn.blocks.surgery.layouts import Grid
from visattn.blocks.surgery.stages import stage_ends, stage_grids
from visattn.blocks.surgery.traces import Trace

Where = str | Sequence[str] | Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Site:
    """A module after which a block is to stand.

    Args:
        name: Of the module.
        channels: Of what it returns.
        grid: Height and width of what it returned.
        last: Whether the channels are on the last axis.
        stage: Its number, from 1; None before the first.
        calls: How often it ran.
        device: Of what it returned.
    """

    name: str
    channels: int
    grid: Grid
    last: bool
    stage: int | None
    calls: int
    device: torch.device


def chosen_sites(
    model: nn.Module, trace: Trace, at: Where, stages: Iterable[int] | None = None
) -> list[Site]:
    """Return the sites that are meant, in the order in which they first ran.

    Args:
        model: That was traced.
        trace: What was seen.
        at: `residual`, `stage_end`, a pattern of names in which `*` stands for one part and `**`
            for any number, a list of names, or a function of a name and its module.
        stages: Numbers of the stages that count, from 1; all if None.

    Raises:
        ValueError: If there is no such site or stage, or if no block can stand at one.
    """
    modules = {name: module for name, module in modules_of(model, ours=False).items() if name}
    names = _meant(modules, trace, at)
    ran = {name: number for number, name in enumerate(trace.outputs)}
    names = sorted(set(names), key=lambda name: ran.get(name, -1))
    wanted = None if stages is None else set(stages)
    grids = stage_grids(trace)
    if wanted is not None and (not wanted or not wanted <= set(range(1, len(grids) + 1))):
        sizes = ", ".join(f"{n}: {y} x {x}" for n, (y, x) in enumerate(grids, 1))
        raise ValueError(
            f"stages must be some of those that this model has ({sizes}), got {sorted(wanted)}; "
            "stages of one size are one stage, so see that the example is large enough"
        )
    if wanted is not None:  # what stands in other stages is none of its business
        names = [name for name in names if _stage(name, trace) in {None, *wanted}]
    found = [site_at(modules[name], name, trace) for name in names]
    kept = [site for site in found if wanted is None or site.stage in wanted]
    if not kept:
        raise ValueError(f"there is no site at={at!r} in stages {sorted(wanted or ())}")
    return kept


def site_at(host: nn.Module, name: str, trace: Trace) -> Site:
    """Return a site.

    Raises:
        ValueError: If no block can stand there, with the reason.
    """
    _check_host(host, name, trace)
    outputs = trace.outputs[name]
    first = outputs[0]
    if first.last is None:
        raise ValueError(
            f"no block can stand after {name}: channels cannot be told from height and width in "
            f"features of shape {list(first.shape)}; give an example of another size or proportion"
        )
    widths = [output.shape[3 if output.last else 1] for output in outputs]
    if len(set(widths)) > 1:
        raise ValueError(
            f"no block can stand after {name}: it runs {len(widths)} times with {widths} channels, "
            "and one block takes one width; choose a module that runs once"
        )
    device = first.device or torch.device("cpu")
    stage = _stage(name, trace)
    return Site(name, widths[0], first.grid, first.last, stage, len(outputs), device)


def _stage(name: str, trace: Trace) -> int | None:
    """Return the number of the stage in which a module returns features."""
    outputs, grids = trace.outputs.get(name, []), stage_grids(trace)
    grid = outputs[0].grid if outputs and len(outputs[0].shape) == 4 else None
    return grids.index(grid) + 1 if grid in grids else None


def _meant(modules: dict[str, nn.Module], trace: Trace, at: Where) -> list[str]:
    if at == "residual":
        names = [addition.branch for addition in trace.additions if addition.branch]
        reason = (
            "no module's output is the residual branch of an addition; say stage_end, or give a "
            "pattern of names"
        )
    elif at == "stage_end":
        names, reason = list(stage_ends(trace).values()), ""
    elif isinstance(at, str):
        names = [name for name in modules if _pattern(at).fullmatch(name)]
        reason = f"no module is named so; {_close(at, modules)}"
    elif callable(at):
        names = [name for name, module in modules.items() if at(name, module)]
        reason = "the function took none of the modules"
    else:
        names = list(at)
        if missing := [name for name in names if name not in modules]:
            raise ValueError(f"there is no module {missing[0]!r}; {_close(missing[0], modules)}")
        reason = "the list of names is empty"
    if not names:
        raise ValueError(f"there is no site at={at!r}: {reason}")
    return names


def _pattern(at: str) -> re.Pattern[str]:
    """Return what names must match: `*` within a part, `**` over parts, `?`, `[...]`."""
    marks = {"**.": r"(?:.+\.)?", "**": ".*", "*": r"[^.]*", "?": r"[^.]"}
    parts = re.split(r"(\*\*\.|\*\*|\*|\?|\[[^\]]+\])", at)
    return re.compile(
        "".join(
            marks.get(part) or (part if part.startswith("[") else re.escape(part)) for part in parts
        )
    )


def _close(name: str, modules: dict[str, nn.Module]) -> str:
    close = difflib.get_close_matches(name, ["residual", "stage_end", *modules], n=3, cutoff=0.5)
    return (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"its modules are named as {', '.join(list(modules)[:3])}, and the words are residual "
        "and stage_end"
    )


def _forward_home(host: nn.Module) -> type:
    """Return the class that says how a module runs."""
    return next(home for home in type(host).__mro__ if "forward" in vars(home))


def _check_host(host: nn.Module, name: str, trace: Trace) -> None:
    """Raise unless a block can stand after a module."""
    outputs = trace.outputs.get(name, [])
    if isinstance(host, (nn.ModuleDict, nn.ModuleList)) or (
        isinstance(host, nn.Sequential) and _forward_home(host) is not nn.Sequential
    ):
        reason = (
            f"it is a {type(host).__name__} and runs its parts by a loop of its own, which would "
            "run the block as one of them; choose one of its parts, or the module that comes next"
        )
    elif not outputs:
        reason = "it does not run in this model, or is a plain container; choose a module that runs"
    elif odd := next((o for o in outputs if len(o.shape) != 4 or not o.floating), None):
        given = list(odd.shape) if odd.kind == "Tensor" else f"a {odd.kind}"
        reason = f"it returns {given}, and a block takes features [batch, channels, height, width]"
    elif (graft := graft_of(host)) is not None:
        reason = (
            f"it holds {' and '.join(graft.names)} already; remove(model) takes everything out, "
            "and a list of blocks puts several at one site"
        )
    elif hasattr(host, CHILD):
        reason = f"it has an attribute {CHILD} of its own"
    else:
        return
    raise ValueError(f"no block can stand after {name}: {reason}")
