"""Source of a gating signal: the module that returns it, and checks that it suits the site."""

from dataclasses import dataclass

from torch import Tensor, nn

from visattn.insertion.feature_layout import Grid
from visattn.insertion.gating_signal import GatingSignal, check_aspect_ratio
from visattn.insertion.inserted_block import InsertedBlock, named_modules
from visattn.insertion.sites import Site, suggest_names
from visattn.insertion.tracer import Trace


@dataclass(frozen=True)
class SignalSource:
    """Source of the gating signal of a site.

    Args:
        signal: Carrier of the signal.
        channels: Number of channels.
        grid: Height and width.
    """

    signal: GatingSignal
    channels: int
    grid: Grid


def find_signal_source(model: nn.Module, trace: Trace, site: Site, name: str) -> SignalSource:
    """Return the source of the gating signal of a site.

    Raises:
        ValueError: If there is no such module, if it returns no feature map, if it does not run
            before the site each time, or if its aspect ratio does not match.
    """
    modules = {
        name: module
        for name, module in named_modules(model, include_inserted=False).items()
        if name
    }
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
    shapes = {
        output.shape[3 if output.channels_last else 1] for output in outputs if output.shape[3:]
    }
    if len(shapes) != 1 or any(len(o.shape) != 4 or not o.is_floating_point for o in outputs):
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
    return SignalSource(signal, shapes.pop(), first.grid)


def _check_order(trace: Trace, site: Site, name: str) -> None:
    """Raise unless the source runs once before each run of the site."""
    source_calls = [output.order for output in trace.outputs[name]]
    site_calls = [output.order for output in trace.outputs[site.name]]
    turns = sorted([(order, 0) for order in source_calls] + [(order, 1) for order in site_calls])
    if len(source_calls) != len(site_calls) or [who for _, who in turns] != [0, 1] * len(
        source_calls
    ):
        when = (
            f"{name} runs after it"
            if min(source_calls) > min(site_calls)
            else f"{name} runs a different number of times"
        )
        raise ValueError(
            f"the signal of {site.name} must come from a module that runs before it, once per "
            f"call, but {when}; put an nn.Identity() where the skip enters the decoder, after "
            f"{name}, and insert the block there"
        )


def check_signal_source(inserted_block: nn.Module, inputs: tuple[Tensor]) -> None:
    """Raise if the gating signal is the tensor that it gates; a forward pre-hook.

    Args:
        inserted_block: The inserted blocks.
        inputs: Their input, the features of the site.

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
