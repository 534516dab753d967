"""Which blocks to make, by name or by a function of the width."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.catalogues import block_class, create, name_of
from visattn.blocks.surgery.grafts import Graft
from visattn.blocks.surgery.hosts import Site
from visattn.blocks.surgery.signal_sources import Source
from visattn.blocks.surgery.signals import takes_signal

Factory = Callable[..., nn.Module]
Recipe = str | Factory | Sequence[str | Factory]


def graft_for(
    site: Site,
    recipe: Recipe,
    *,
    identity: bool,
    options: dict[str, Any],
    source: Source | None = None,
) -> Graft:
    """Return the blocks for a site.

    With `identity`, a block that changes features as it is made gets a scale of zero. One that
    leaves them alone, because it starts with a weight of zero of its own, gets none: nothing can
    learn below two zeros.

    Raises:
        ValueError: If there is no such block, if it takes no such option or changes the shape, or
            if it takes a signal and there is none, or the other way around.
        TypeError: If it is neither named nor made by a function.
    """
    wanted = [recipe] if isinstance(recipe, str) or callable(recipe) else list(recipe)
    if not wanted:
        raise ValueError("at least one block is to be inserted, got an empty list")
    blocks: dict[str, nn.Module] = {}
    # On the meta device nothing can be compared, and elsewhere the CPU's random numbers will do.
    bare = site.device.type == "meta" and not identity
    with torch.device("meta" if bare else "cpu"):
        for each in wanted:
            made = _made(each, site.channels, {**options, **_signal_width(each, source)})
            blocks[_label(made, blocks)] = made
        _check_signals(blocks, site, source)
        changing = [name for name in blocks if identity and _changes(blocks[name], site, source)]
        signal = source.signal if source else None
        return Graft(blocks, eased=changing, last=site.last, signal=signal)


def _signal_width(recipe: str | Factory, source: Source | None) -> dict[str, int]:
    """Return the width of the signal as an option of a block that takes it."""
    maker = block_class(recipe) if isinstance(recipe, str) else recipe
    if source is None or isinstance(maker, nn.Module):
        return {}
    takes = "signal" in inspect.signature(maker).parameters
    return {"signal": source.channels} if takes else {}


def _check_signals(blocks: dict[str, nn.Module], site: Site, source: Source | None) -> None:
    """Raise unless there is a signal if a block takes one, and only then."""
    takers = [name for name, block in blocks.items() if takes_signal(block)]
    if takers and source is None:
        raise ValueError(
            f"{takers[0]} weighs the features of {site.name} by a gating signal from elsewhere: "
            "say signal='NAME', the module that returns it, such as the upsampling of the coarser "
            "decoder level in a U-Net; without it the gate would attend to its own input"
        )
    if source is not None and not takers:
        raise ValueError(
            f"{' + '.join(blocks)} takes no signal, got signal={source.signal.name!r}; drop it, or "
            "insert a block that does, such as gate"
        )


def _made(recipe: str | Factory, channels: int, options: dict[str, Any]) -> nn.Module:
    if isinstance(recipe, str):
        return create(recipe, channels, **options)
    if isinstance(recipe, nn.Module):
        raise TypeError(
            "each site gets a block of its own: give its name, or a function from a number of "
            f"channels to a module, such as its class, got a {type(recipe).__name__} ready made"
        )
    made = cast("object", recipe(channels, **options))  # people's functions promise nothing
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"a function that makes blocks must return a module for {channels} channels, "
            f"got {type(made).__name__}"
        )
    return made


def _label(block: nn.Module, taken: dict[str, nn.Module]) -> str:
    name = name_of(block) or type(block).__name__
    name = re.sub(r"\W", "_", name.rpartition(".")[2].lower())
    name = f"{name}_block" if hasattr(nn.Module, name) else name
    count = sum(re.fullmatch(rf"{name}\d*", other) is not None for other in taken)
    return f"{name}{count + 1}" if count else name


def _changes(block: nn.Module, site: Site, source: Source | None) -> bool:
    """Return whether a block gives more than a rounding away from what it was given.

    Raises:
        ValueError: If it gives features of another shape.
    """
    random = torch.Generator().manual_seed(0)
    x: Float[Tensor, "1 c y x"] = torch.randn(1, site.channels, *site.grid, generator=random)
    training = block.training
    with torch.no_grad():
        if source is not None and takes_signal(block):
            width, grid = source.channels, source.grid
            y = block.eval()(x, torch.randn(1, width, *grid, generator=random))
        else:
            y = block.eval()(x)
    block.train(training)
    if y.shape != x.shape:
        raise ValueError(
            f"a block must keep the shape of what it takes, but {type(block).__name__} after "
            f"{site.name} made {list(y.shape)} of {list(x.shape)}"
        )
    return not torch.allclose(y, x, rtol=1e-5, atol=1e-5)
