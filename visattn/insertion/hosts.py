"""Modules after which a block can stand, and why others cannot."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from visattn.insertion.feature_layout import Grid
from visattn.insertion.graft import CHILD, graft_of, runs_its_own_loop
from visattn.insertion.resolutions import same_size
from visattn.insertion.stages import Part, Stage
from visattn.insertion.trace_records import Trace

_SHOWN = 12
"""Candidates that an error lists."""


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
        part: `encoder`, `bottleneck` or `decoder` in a model that enlarges features again.
    """

    name: str
    channels: int
    grid: Grid
    last: bool
    stage: int | None
    calls: int
    device: torch.device
    part: Part = ""

    def __str__(self) -> str:
        """Return its name, the shape of its features, and its part of the model."""
        text = f"{self.name}  {self.channels} x {self.grid[0]} x {self.grid[1]}"
        return f"{text}  {self.part}" if self.part else text


class NoFeatureMapError(ValueError):
    """A module returns something else than features."""


def site_at(
    host: nn.Module, name: str, trace: Trace, stages: list[Stage], *, loose: bool = False
) -> Site:
    """Return a site.

    Raises:
        ValueError: If no block can stand there, with the reason.
    """
    _check_host(host, name, trace, loose=loose)
    outputs = trace.outputs[name]
    first = outputs[0]
    if first.last is None:
        raise ValueError(
            f"no block can stand after {name}: channels cannot be told from height and width in "
            f"features of shape {list(first.shape)}; give an example of another size or proportion"
        )
    widths = [output.shape[3 if output.last else 1] for output in outputs]
    if len(set(widths)) > 1:
        kind = NoFeatureMapError if loose else ValueError
        raise kind(
            f"no block can stand after {name}: it runs {len(widths)} times with {widths} channels, "
            "and one block takes one width; choose a module that runs once"
        )
    device = first.device or torch.device("cpu")
    stage = stage_number(name, trace, stages)
    part = stages[stage - 1].part if stage else ""
    calls = len(outputs)
    return Site(name, widths[0], first.grid, first.last, stage, calls, device, part)


def stage_number(name: str, trace: Trace, stages: list[Stage]) -> int | None:
    """Return the number of the stage in which a module returns features."""
    outputs = trace.outputs.get(name, [])
    if not outputs or len(outputs[0].shape) != 4:
        return None
    held = (n for n, s in enumerate(stages, 1) if s.holds(outputs[0].grid, outputs[0].order))
    return next(held, None)


def candidates(trace: Trace, modules: Mapping[str, nn.Module], grid: Grid | None = None) -> str:
    """Return the modules after which a block can stand, as the end of an error.

    Args:
        trace: What was seen.
        modules: By name.
        grid: Height and width of the features, if only those of one resolution count.
    """
    found: dict[str, str] = {}
    for name, outputs in trace.outputs.items():
        sizes = {output.grid for output in outputs if len(output.shape) == 4}
        if not name or (grid and not any(same_size(size, grid) for size in sizes)):
            continue
        try:
            site = site_at(modules[name], name, trace, [], loose=True)
        except ValueError:
            continue
        runs = f" ({site.calls} runs)" if site.calls > 1 else ""
        found[name] = f"{site.name} {site.channels} x {site.grid[0]} x {site.grid[1]}{runs}"
    # The outer ones say most; the parts of one that is listed are left to the reader.
    outer = sorted(found, key=lambda name: name.count("."))[:_SHOWN]
    if not found:
        return ""
    lines = [found[name] for name in found if name in outer]
    more = f", and {len(found) - len(lines)} more" if len(found) > len(lines) else ""
    return f". Modules that return feature maps: {', '.join(lines)}{more}"


def _check_host(host: nn.Module, name: str, trace: Trace, *, loose: bool) -> None:
    """Raise unless a block can stand after a module; a pooled vector is taken if it is named."""
    outputs = trace.outputs.get(name, [])
    kind = NoFeatureMapError if loose else ValueError
    if runs_its_own_loop(host):
        reason = (
            f"it is a {type(host).__name__} and runs its parts by a loop of its own, which would "
            "run the block as one of them; choose one of its parts, or the module that comes next"
        )
    elif not outputs:
        reason = "it does not run in this model, or is a plain container; choose a module that runs"
    elif odd := next((o for o in outputs if len(o.shape) != 4 or not o.floating), None):
        given = list(odd.shape) if odd.kind == "Tensor" else f"a {odd.kind}"
        reason = f"it returns {given}, and a block takes features [batch, channels, height, width]"
    elif loose and all(output.grid == (1, 1) for output in outputs):
        reason = "it returns 1 x 1 places, which are no feature map"
    elif (graft := graft_of(host)) is not None:
        kind = ValueError
        reason = (
            f"it holds {' and '.join(graft.names)} already; remove(model) takes everything out, "
            "and a list of blocks puts several at one site"
        )
    elif hasattr(host, CHILD):
        reason = f"it has an attribute {CHILD} of its own"
    else:
        return
    raise kind(f"no block can stand after {name}: {reason}")
