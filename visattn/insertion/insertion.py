"""Insert attention blocks into an existing model."""

import inspect
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.registry import block_class, block_name, create_block
from visattn.insertion.freezing import freeze_except_blocks
from visattn.insertion.gating_signal import accepts_signal
from visattn.insertion.inserted_block import InsertedBlock, attach, detach, named_modules
from visattn.insertion.signal_source import (
    SignalSource,
    check_signal_source,
    find_signal_source,
)
from visattn.insertion.sites import Position, Site, select_sites
from visattn.insertion.tracer import Example, modes_restored, run_model, trace_model
from visattn.io.argument_checks import checked_arguments

BlockFactory = Callable[..., nn.Module]
BlockSpec = str | BlockFactory | Sequence[str | BlockFactory]


def build_blocks(
    site: Site,
    spec: BlockSpec,
    *,
    identity: bool,
    options: dict[str, Any],
    source: SignalSource | None = None,
) -> InsertedBlock:
    """Create the blocks for one site.

    With `identity`, a block that changes features at initialization gets an identity scale of zero.
    A block that starts as the identity by a zero weight of its own gets none, since no gradient
    would pass two zeros.

    Raises:
        ValueError: If there is no such block or argument, if a block changes the shape, or if a
            gating signal is missing or superfluous.
        TypeError: If a block is neither a name nor a function that returns a module.
    """
    specs = [spec] if isinstance(spec, str) or callable(spec) else list(spec)
    if not specs:
        raise ValueError("at least one block must be given, got an empty list")
    blocks: dict[str, nn.Module] = {}
    # Outputs cannot be compared on the meta device; otherwise build on the CPU.
    on_meta = site.device.type == "meta" and not identity
    with torch.device("meta" if on_meta else "cpu"):
        for each in specs:
            block = _build_block(each, site.channels, {**options, **_signal_options(each, source)})
            blocks[_unique_name(block, blocks)] = block
        _check_signals(blocks, site, source)
        changing = [
            name for name in blocks if identity and _changes_features(blocks[name], site, source)
        ]
        signal = source.signal if source else None
        return InsertedBlock(
            blocks, identity_init=changing, channels_last=site.channels_last, signal=signal
        )


def _signal_options(spec: str | BlockFactory, source: SignalSource | None) -> dict[str, int]:
    """Return the channels of the signal as an argument of a block that takes it."""
    maker = block_class(spec) if isinstance(spec, str) else spec
    if source is None or isinstance(maker, nn.Module):
        return {}
    accepts = "signal_channels" in inspect.signature(maker).parameters
    return {"signal_channels": source.channels} if accepts else {}


def _check_signals(blocks: dict[str, nn.Module], site: Site, source: SignalSource | None) -> None:
    """Raise unless a signal is given exactly if a block takes one."""
    takers = [name for name, block in blocks.items() if accepts_signal(block)]
    if takers and source is None:
        raise ValueError(
            f"{takers[0]} gates the features of {site.name} by a signal from another module: pass "
            "signal='NAME', the module that returns it, such as the upsampling of the coarser "
            "decoder level in a U-Net; without it the block would gate its input by itself"
        )
    if source is not None and not takers:
        raise ValueError(
            f"{' + '.join(blocks)} takes no gating signal, got signal={source.signal.name!r}; drop "
            "the argument, or insert a block that takes one, such as gate"
        )


def _build_block(spec: str | BlockFactory, channels: int, options: dict[str, Any]) -> nn.Module:
    if isinstance(spec, str):
        return create_block(spec, channels, **options)
    if isinstance(spec, nn.Module):
        raise TypeError(
            "each site needs a block of its own: pass its name, or a function from a number of "
            f"channels to a module, such as its class, got an instance of {type(spec).__name__}"
        )
    block = cast("object", spec(channels, **options))  # user functions may return anything
    if not isinstance(block, nn.Module):
        raise TypeError(
            f"a block factory must return a module for {channels} channels, "
            f"got {type(block).__name__}"
        )
    return block


def _unique_name(block: nn.Module, taken: dict[str, nn.Module]) -> str:
    name = block_name(block) or type(block).__name__
    name = re.sub(r"\W", "_", name.rpartition(".")[2].lower())
    name = f"{name}_block" if hasattr(nn.Module, name) else name
    count = sum(re.fullmatch(rf"{name}\d*", other) is not None for other in taken)
    return f"{name}{count + 1}" if count else name


def _changes_features(block: nn.Module, site: Site, source: SignalSource | None) -> bool:
    """Return whether a block changes its input by more than rounding.

    Raises:
        ValueError: If the output has another shape.
    """
    random = torch.Generator().manual_seed(0)
    x: Float[Tensor, "1 c y x"] = torch.randn(1, site.channels, *site.grid, generator=random)
    training = block.training
    with torch.no_grad():
        if source is not None and accepts_signal(block):
            width, grid = source.channels, source.grid
            y = block.eval()(x, torch.randn(1, width, *grid, generator=random))
        else:
            y = block.eval()(x)
    block.train(training)
    if y.shape != x.shape:
        raise ValueError(
            f"a block must preserve the shape of its input, but {type(block).__name__} after "
            f"{site.name} returned {list(y.shape)} for {list(x.shape)}"
        )
    return not torch.allclose(y, x, rtol=1e-5, atol=1e-5)


Init = Literal["identity", "paper"]


@dataclass(frozen=True)
class Insertion:
    """Report of an insertion; printed, it lists the sites.

    Args:
        blocks: Names of the inserted blocks, in their order at each site.
        sites: Insertion sites with channels and size of their features.
        num_parameters: Number of added parameters, including identity scales.
        num_identity_scales: Number of identity scales, which no paper has.
        num_skipped: Residual additions without a site, for `position="residual"`.
        notes: Remarks about the choice of sites.
    """

    blocks: tuple[str, ...]
    sites: tuple[Site, ...]
    num_parameters: int
    num_identity_scales: int
    num_skipped: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a summary line and one line per site."""
        names = " + ".join(self.blocks)
        head = f"{names} at {len(self.sites)} sites: {self.num_parameters:,} parameters"
        head += (
            f", {self.num_identity_scales} of which are identity scales"
            if self.num_identity_scales
            else ""
        )
        head += f"; {self.num_skipped} additions skipped" if self.num_skipped else ""
        return "\n".join([head, *(f"  {site}" for site in self.sites), *self.notes])


@checked_arguments()
def insert(
    model: nn.Module,
    block: BlockSpec,
    *,
    position: Position,
    example: Example,
    stages: Iterable[int] | None = None,
    signal: str | None = None,
    init: Init = "identity",
    freeze: bool = False,
    trainable: Sequence[str] = (),
    **options: Any,
) -> Insertion:
    """Insert attention blocks after modules of a model, in place.

    The model runs twice on the example in evaluation mode: to find the sites, and to check that
    every block runs as often as its site. Existing parameters keep their names; those of the blocks
    are under `SITE.visattn`. Insert before compiling or wrapping the model (DDP, FSDP).

    Args:
        model: Any model, from torchvision, timm or your own.
        block: Block name, a function from a number of channels to a module, or a list of these,
            which are applied in order at each site.
        position: Sites: `residual` (end of each residual branch, before the addition, drop path and
            layer scale), `stage_end` (after the last residual block of each resolution, or before
            downsampling in a model without residual blocks), a pattern of module names in which `*`
            matches one component and `**` any number, a list of module names, or a predicate of
            name and module.
        example: Example input: a tensor, or a tuple of all arguments. Its size determines the
            stages.
        stages: Numbers of the stages to use, from 1; all if None. A stage comprises the layers at
            one resolution, without the stem of a residual network.
        signal: Name of the module whose output is the gating signal of a block that takes one, such
            as `gate`. It must run before the site in each forward pass, and its features must cover
            the same image, at any resolution. For the skip connection of a U-Net, put an
            `nn.Identity` where the skip enters the decoder, if there is no module.
        init: `identity`: x + scale (block(x) - x) with a scale of zero, so that the output of the
            model does not change; a block that starts as the identity gets no scale (`stn` then
            differs by rounding, 1e-7). `paper`: the block as published.
        freeze: Train the blocks alone: see `freeze_except_blocks`; `save_blocks` saves them.
        trainable: With `freeze`, names of further modules that are trained, such as `fc`.
        options: Arguments of the blocks, such as `reduction`.

    Raises:
        ValueError: If there is no such site, block or argument, if a site cannot hold a block or
            holds one already, if a signal is missing or does not fit, or if the model is compiled,
            scripted or wrapped.
        TypeError: If the example contains no tensor, or if a block is a module instance.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1))
        >>> x = torch.randn(1, 3, 11, 13)
        >>> before = model(x)
        >>> print(insert(model, "se", position="1", example=x, reduction=2))
        se at 1 sites: 77 parameters, 1 of which are identity scales
          1  8 x 9 x 11
        >>> torch.equal(model(x), before)
        True
    """
    _check_options(init, freeze, trainable)
    check_modifiable(model)
    with _random_state_kept_on_error():
        trace = trace_model(model, example)
        selection = select_sites(model, trace, position, stages)
        inserted = {
            site: build_blocks(
                site,
                block,
                identity=init == "identity",
                options=options,
                source=None if signal is None else find_signal_source(model, trace, site, signal),
            )
            for site in selection.sites
        }
        with _attached(model, inserted):
            _check_forward(model, inserted, example)
            if freeze:
                freeze_except_blocks(model, trainable)
    blocks = inserted.values()
    num_skipped = sum(addition.branch is None for addition in trace.additions)
    return Insertion(
        blocks=next(iter(blocks)).names,
        sites=tuple(inserted),
        num_parameters=sum(p.numel() for each in blocks for p in each.parameters()),
        num_identity_scales=sum(len(each.identity_scales) for each in blocks),
        num_skipped=num_skipped if position == "residual" else 0,
        notes=selection.notes,
    )


@contextmanager
def _random_state_kept_on_error() -> Generator[None]:
    """Undo what the initialization of blocks took from the random state, if they are not used."""
    before = torch.random.get_rng_state()  # blocks are made on the processor
    try:
        yield
    except BaseException:
        torch.random.set_rng_state(before)
        raise


@contextmanager
def _attached(model: nn.Module, inserted: dict[Site, InsertedBlock]) -> Generator[None]:
    """Attach blocks to their sites, and detach them again after an error."""
    for site, inserted_block in inserted.items():
        host = model.get_submodule(site.name)
        attach(host, _match_host(inserted_block, host, model, site.device))
    try:
        yield
    except BaseException:
        for site in inserted:
            detach(model.get_submodule(site.name))
        raise


def _check_options(init: str, freeze: bool, trainable: Sequence[str]) -> None:
    if trainable and not freeze:
        raise ValueError(f"trainable goes with freeze=True, got {list(trainable)} without it")
    if init not in get_args(Init):
        raise ValueError(f"init must be one of {', '.join(get_args(Init))}, got {init!r}")


def check_modifiable(model: nn.Module) -> None:
    """Raise unless blocks can be inserted into the model.

    Raises:
        ValueError: If it is compiled, scripted or wrapped for several devices.
    """
    wrappers = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
    for name, module in named_modules(model).items():
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


def _match_host(
    inserted_block: InsertedBlock, host: nn.Module, model: nn.Module, device: torch.device | None
) -> InsertedBlock:
    """Return the blocks on the device of their host, with its dtype and training mode."""
    weights = [*host.parameters(), *model.parameters()]
    dtype = next((weight.dtype for weight in weights if weight.is_floating_point()), None)
    return inserted_block.to(device=device, dtype=dtype).train(host.training)


def _check_forward(model: nn.Module, inserted: dict[Site, InsertedBlock], example: Example) -> None:
    """Run the model and raise unless every block runs with its site and keeps the shape."""
    calls = dict.fromkeys(inserted, 0)
    with ExitStack() as stack:
        for site, inserted_block in inserted.items():

            def count_call(
                _: nn.Module, inputs: tuple[Tensor], output: Tensor, site: Site = site
            ) -> None:
                calls[site] += 1
                if output.shape != inputs[0].shape:
                    raise ValueError(
                        f"a block must preserve the shape of its input, but after {site.name} "
                        f"it returned {list(output.shape)} for {list(inputs[0].shape)}"
                    )

            stack.callback(inserted_block.register_forward_hook(count_call).remove)
            stack.callback(inserted_block.register_forward_pre_hook(check_signal_source).remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(modes_restored(model))
        run_model(model, example)
    for site, count in calls.items():
        if count != site.num_calls:
            raise ValueError(
                f"no block can stand after {site.name}: it ran {site.num_calls} times, the block "
                f"{count} times; its module or the one around it loops over its children by itself"
            )
