"""Put attention into a model that was not made for it."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from visattn.blocks.surgery.grafts import Graft, displace, modules_of, place
from visattn.blocks.surgery.hosts import Site
from visattn.blocks.surgery.recipes import Recipe, graft_for
from visattn.blocks.surgery.signal_sources import source_of
from visattn.blocks.surgery.sites import Where, chosen_sites
from visattn.blocks.surgery.traces import Example, resting, run, trace

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
        name: A name of the catalogue, a function from a number of channels to a module, or a list
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
            cover the same picture; they may be of another size. The skip of a U-Net is such a site
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


def _fitted(graft: Graft, host: nn.Module, model: nn.Module, device: torch.device | None) -> Graft:
    """Return a graft on the device and in the precision of its host, and in its mode."""
    weights = [*host.parameters(), *model.parameters()]
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), None)
    return graft.to(device=device, dtype=dtype).train(host.training)


def _check_runs(model: nn.Module, grafts: dict[Site, Graft], example: Example) -> None:
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
    signal = graft.signal if isinstance(graft, Graft) else None
    for kept in signal.kept.values() if signal else ():
        if kept.data_ptr() == given[0].data_ptr() and kept.shape == given[0].shape:
            raise ValueError(
                f"the signal from {signal.name if signal else ''} is what the gate is to weigh: it "
                "would attend to its own input; name the module of a coarser level"
            )
