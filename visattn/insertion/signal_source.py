"""Which module gives the gating signal of a site, and whether it can."""

from dataclasses import dataclass

from torch import nn

from visattn.insertion.feature_layout import Grid
from visattn.insertion.gating_signal import Signal, check_proportion
from visattn.insertion.graft import modules_of
from visattn.insertion.hosts import Site
from visattn.insertion.sites import close_names
from visattn.insertion.trace_records import Trace


@dataclass(frozen=True)
class Source:
    """Where the signal of a site comes from.

    Args:
        signal: That carries it.
        channels: Its width.
        grid: Its height and width.
    """

    signal: Signal
    channels: int
    grid: Grid


def source_of(model: nn.Module, trace: Trace, site: Site, name: str) -> Source:
    """Return the source of the signal of a site.

    Raises:
        ValueError: If there is no such module, if it returns no features, if it does not run before
            the site each time, or if its features cannot lie over those of the site.
    """
    modules = {name: module for name, module in modules_of(model, ours=False).items() if name}
    if name not in modules:
        raise ValueError(f"there is no module {name!r} for a signal; {close_names(name, modules)}")
    if name == site.name:
        raise ValueError(
            f"signal={name!r} is the site itself: a gate would weigh features by themselves; name "
            "the module of a coarser level that runs before it"
        )
    outputs = trace.outputs.get(name, [])
    shapes = {output.shape[3 if output.last else 1] for output in outputs if output.shape[3:]}
    if len(shapes) != 1 or any(len(o.shape) != 4 or not o.floating for o in outputs):
        given = " and ".join(str(list(o.shape) or f"a {o.kind}") for o in outputs) or "nothing"
        raise ValueError(
            f"a signal must be features [batch, channels, height, width] of one width, but {name} "
            f"returns {given}"
        )
    _check_order(trace, site, name)
    first = outputs[0]
    check_proportion(site.grid, first.grid, {"site": site.name, "signal": name})
    signal = Signal(name, modules[name], last=first.last is True)
    return Source(signal, shapes.pop(), first.grid)


def _check_order(trace: Trace, site: Site, name: str) -> None:
    """Raise unless the source runs once before each run of the site."""
    came = [output.order for output in trace.outputs[name]]
    went = [output.order for output in trace.outputs[site.name]]
    turns = sorted([(order, 0) for order in came] + [(order, 1) for order in went])
    if len(came) != len(went) or [who for _, who in turns] != [0, 1] * len(came):
        when = f"{name} runs after it" if min(came) > min(went) else f"{name} runs otherwise often"
        raise ValueError(
            f"the signal of {site.name} must come from a module that runs before it, once for each "
            f"time, but {when}; where the features of a skip enter the decoder, after {name}, put "
            "an nn.Identity() into the model and insert at that"
        )
