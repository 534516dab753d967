"""Which blocks to make, by name or by a function of the width."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.registry import block_class, create, name_of
from visattn.insertion.gating_signal import takes_signal
from visattn.insertion.graft import InsertedBlock, displace, modules_of, place
from visattn.insertion.hosts import Site
from visattn.insertion.signal_source import Source, source_of
from visattn.insertion.sites import Where, chosen_sites
from visattn.insertion.tracer import Example, resting, run, trace

Factory = Callable[..., nn.Module]
Recipe = str | Factory | Sequence[str | Factory]


def graft_for(
    site: Site,
    recipe: Recipe,
    *,
    identity: bool,
    options: dict[str, Any],
    source: Source | None = None,
) -> InsertedBlock:
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
        return InsertedBlock(blocks, eased=changing, last=site.last, signal=signal)


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


Init = Literal["identity", "paper"]


@dataclass(frozen=True)
class Insertion:
    """What was inserted where.

    Args:
        blocks: By name, in the order in which they stand at each site.
        sites: Each with the width and size of its features.
        parameters: That were added, those of the scales among them.
        scales: Parameters that are ours and in no paper: the identity scales.
        missed: Residual additions at which no block could stand, for `at="residual"`.
        notes: What may not be expected of the sites, a line each.
    """

    blocks: tuple[str, ...]
    sites: tuple[Site, ...]
    parameters: int
    scales: int
    missed: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it in a line and one for each site."""
        names = " + ".join(self.blocks)
        head = f"{names} at {len(self.sites)} sites: {self.parameters:,} parameters"
        head += f", {self.scales} of which are identity scales" if self.scales else ""
        head += f"; {self.missed} additions left out" if self.missed else ""
        return "\n".join([head, *(f"  {site}" for site in self.sites), *self.notes])


def insert(
    model: nn.Module,
    name: Recipe,
    *,
    at: Where,
    example: Example,
    stages: Iterable[int] | None = None,
    signal: str | None = None,
    init: Init = "identity",
    **options: Any,
) -> Insertion:
    """Insert a block after modules of a model, which is changed in place.

    The model runs twice on the example, in evaluation mode: to see its sites, and to see that
    every block runs as often as its site. All that was there keeps its name; the parameters of the
    blocks lie below `SITE.visattn`, and a plain checkpoint lacks nothing else. Insert before you
    compile, and before you wrap a model for several devices.

    Args:
        model: Of any kind; torchvision, timm or your own.
        name: A name of the catalog, a function from a number of channels to a module, or a list
            of these, which then stand one after another at each site.
        at: `residual` (at the end of each residual branch, before the addition and before drop path
            and layer scale; a block without a shortcut has no such site), `stage_end` (after the
            last residual block of a size; without residual blocks, before features are made
            smaller), a pattern of module names in which `*` stands for one part and `**` for any
            number, a list of names, or a function of a name and its module that says yes or no.
        example: What the model takes: a tensor, or a tuple of all arguments. Its size is that at
            which stages are told apart.
        stages: Numbers of the stages that count, from 1, all if None. A stage is what runs at one
            height and width, without the stem of a residual network.
        signal: Name of the module whose output is the gating signal of a block that takes one, as
            `gate` does. It must run before the site in each forward pass, and its features must
            cover the same image; they may be of another size. The skip of a U-Net is such a site
            where it enters the decoder; if no module stands there, put an `nn.Identity` there.
        init: `identity`: x + scale (block(x) - x) with a scale of zero, so that the model gives
            what it gave before; a block that starts as the identity by itself gets no scale (the
            sampler of `stn` then rounds, by 1e-7).
            `paper`: the block as published.
        options: For the blocks, as `reduction`; each must take all of them.

    Raises:
        ValueError: If there is no such site, block or option, if no block can stand at a site, if
            one stands there already, if a block lacks its signal or the signal does not fit, or if
            the model is compiled, scripted or wrapped.
        TypeError: If there is no tensor in the example, or if a block is given ready made.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1))
        >>> x = torch.randn(1, 3, 11, 13)
        >>> before = model(x)
        >>> print(insert(model, "se", at="1", example=x, reduction=2))
        se at 1 sites: 77 parameters, 1 of which are identity scales
          1  8 x 9 x 11
        >>> torch.equal(model(x), before)
        True
    """
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")
    check_open(model)
    seen = trace(model, example)
    chosen = chosen_sites(model, seen, at, stages)
    identity = init == "identity"
    grafts = {
        site: graft_for(
            site,
            name,
            identity=identity,
            options=options,
            source=None if signal is None else source_of(model, seen, site, signal),
        )
        for site in chosen.sites
    }
    for site, graft in grafts.items():
        host = model.get_submodule(site.name)
        place(host, _fitted(graft, host, model, site.device))
    try:
        _check_runs(model, grafts, example)
    except BaseException:
        for site in grafts:
            displace(model.get_submodule(site.name))
        raise
    missed = sum(addition.branch is None for addition in seen.additions)
    return Insertion(
        blocks=next(iter(grafts.values())).names,
        sites=tuple(grafts),
        parameters=sum(p.numel() for graft in grafts.values() for p in graft.parameters()),
        scales=sum(len(graft.scales) for graft in grafts.values()),
        missed=missed if at == "residual" else 0,
        notes=chosen.notes,
    )


def check_open(model: nn.Module) -> None:
    """Raise unless a model runs its modules one by one, so that what is put in takes part.

    Raises:
        ValueError: If it is compiled, scripted, or wrapped for several devices.
    """
    wrappers = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
    for name, module in modules_of(model).items():
        if type(module).__name__ in wrappers:
            reason = f"is wrapped in {type(module).__name__}; insert into its module, then wrap"
        elif isinstance(module, torch.jit.ScriptModule):
            reason = "is scripted or traced; insert into the model that it was made from"
        elif (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        ):
            reason = "is compiled; insert into the model that it was made from, then compile"
        else:
            continue
        raise ValueError(f"{name or 'the model'} {reason}")


def _fitted(
    graft: InsertedBlock, host: nn.Module, model: nn.Module, device: torch.device | None
) -> InsertedBlock:
    """Return a graft on the device and in the precision of its host, and in its mode."""
    weights = [*host.parameters(), *model.parameters()]
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), None)
    return graft.to(device=device, dtype=dtype).train(host.training)


def _check_runs(model: nn.Module, grafts: dict[Site, InsertedBlock], example: Example) -> None:
    """Run the model, and raise unless every block runs with its site and keeps the shape."""
    calls = dict.fromkeys(grafts, 0)
    with ExitStack() as stack:
        for site, graft in grafts.items():

            def note(_: nn.Module, given: tuple[Tensor], made: Tensor, site: Site = site) -> None:
                calls[site] += 1
                if made.shape != given[0].shape:
                    raise ValueError(
                        f"a block must keep the shape of what it takes, but after {site.name} "
                        f"{list(given[0].shape)} became {list(made.shape)}"
                    )

            stack.callback(graft.register_forward_hook(note).remove)
            stack.callback(graft.register_forward_pre_hook(_check_signal).remove)
        stack.enter_context(resting(model))
        run(model, example)
    for site, count in calls.items():
        if count != site.calls:
            raise ValueError(
                f"no block can stand after {site.name}: it ran {site.calls} times, the block "
                f"{count} times; its module or the one around it loops over its children by itself"
            )


def _check_signal(graft: nn.Module, given: tuple[Tensor]) -> None:
    """Raise if the signal of a graft is what it is to weigh."""
    signal = graft.signal if isinstance(graft, InsertedBlock) else None
    for kept in signal.kept.values() if signal else ():
        if kept.data_ptr() == given[0].data_ptr() and kept.shape == given[0].shape:
            raise ValueError(
                f"the signal from {signal.name if signal else ''} is what the gate is to weigh: it "
                "would attend to its own input; name the module of a coarser level"
            )
