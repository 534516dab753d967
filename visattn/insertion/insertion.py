"""Insertion of attention blocks into a CNN, their removal, and training of the blocks only."""

import inspect
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.registry import block_class, block_name, create_block
from visattn.insertion.inserted_block import (
    InsertedBlock,
    accepts_signal,
    attach,
    detach,
    named_modules,
)
from visattn.insertion.sites import (
    Position,
    SignalSource,
    Site,
    check_signal_source,
    find_signal_source,
    select_sites,
)
from visattn.insertion.trace import Example, modes_restored, run_model, trace_model

_FROZEN = "visattn_frozen"
"""Attribute of a module: the names of its own parameters that `freeze_except_blocks` froze."""
_SAVED = "visattn_saved_buffers"


def freeze_except_blocks(model: nn.Module, trainable: Sequence[str] = ()) -> list[str]:
    """Freeze a network with inserted blocks, except for these; return the trainable parameters.

    Training then changes no parameter and no buffer outside of the blocks and of `trainable`, so
    that the network without its blocks remains the pretrained one. Parameters get
    `requires_grad=False`. Modules with statistics of their own, batch norms above all, stay in
    evaluation mode during `model.train()`, also if they host a block; other buffers are restored
    after each forward pass. A norm of which only the weight is trainable keeps its
    statistics. `remove` reverses this.

    Args:
        model: The network, after `insert`.
        trainable: Names of further modules or parameters that are trained, such as the classifier
            `fc`; `*` matches any characters.

    Raises:
        ValueError: If the model has no inserted blocks, or a name matches nothing.

    Example:
        >>> import torch, visattn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> x = torch.randn(1, 3, 11, 13)
        >>> _ = visattn.insert(model, "eca", position="1", example=x)
        >>> freeze_except_blocks(model)
        ['1.visattn.eca_scale', '1.visattn.eca.conv.weight']
        >>> model.train()[1].weight.requires_grad
        False

    Source:
        Houlsby et al. 2019, arXiv:1902.00751, trains small inserted modules in a frozen network.
    """
    if not any(isinstance(module, InsertedBlock) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} must have inserted blocks, got none; call visattn.insert first"
        )
    trained = trained_tensors(model, trainable)
    buffers = dict(model.named_buffers(remove_duplicate=False))  # also those that are not saved
    trained |= {name: buffers[name] for name in _trained_names(model, trainable, buffers)}
    kept = {id(tensor) for tensor in trained.values()}
    unfreeze(model)
    for module in model.modules():
        _freeze_parameters(module, kept)
        _freeze_buffers(module, kept)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def unfreeze(model: nn.Module) -> None:
    """Reverse `freeze_except_blocks`; nothing happens to a model that was not frozen by it.

    Example:
        >>> unfreeze(nn.Linear(2, 3))
    """
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
        for attribute in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = cast("dict[int, object]", vars(module)[attribute])
            for key in [key for key, hook in hooks.items() if hook in _HOOKS]:
                del hooks[key]


def _freeze_parameters(module: nn.Module, kept: set[int]) -> None:
    own = dict(module.named_parameters(recurse=False))
    for parameter in own.values():
        if id(parameter) in kept:
            parameter.requires_grad_()
    frozen = {n: p for n, p in own.items() if p.requires_grad and id(p) not in kept}
    for parameter in frozen.values():
        parameter.requires_grad = False
        # An optimizer would still apply a gradient from before.
        parameter.grad = None
    if frozen:
        # A tuple of names, so that a copy of the model can be unfrozen, too.
        vars(module)[_FROZEN] = tuple(frozen)


def _freeze_buffers(module: nn.Module, kept: set[int]) -> None:
    """Let training change no buffer of the module itself, unless all of them are trained."""
    own = {name: buffer for name, buffer in _own_buffers(module).items() if id(buffer) not in kept}
    if not own:
        return
    children = [child for child in module.children() if not isinstance(child, InsertedBlock)]
    statistics = any(name.startswith("running_") for name in own)
    if statistics or (not children and any(b.is_floating_point() for b in own.values())):
        # First of all hooks, since that of `spectral_norm` updates its vectors in training mode.
        module.register_forward_pre_hook(_stay_in_eval, prepend=True)
    if not statistics:  # it may change its buffers in any mode
        module.register_forward_pre_hook(_save_buffers, prepend=True)
        module.register_forward_hook(_restore_buffers)


def trained_tensors(model: nn.Module, trainable: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return parameters and buffers of the inserted blocks and of the modules named `trainable`.

    Raises:
        ValueError: If a name matches nothing.

    Example:
        >>> sorted(trained_tensors(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["1"]))
        ['1.bias', '1.weight']
    """
    state = cast("Mapping[str, Tensor]", model.state_dict(keep_vars=True))
    for pattern in trainable:
        if not any(_matches(name, pattern) for name in state):
            raise ValueError(
                f"trainable must name modules or parameters of the model, but {pattern!r} matches "
                f"none; its modules are {', '.join(name for name, _ in model.named_children())}"
            )
    return {name: state[name] for name in _trained_names(model, trainable, state)}


def check_all_saved(model: nn.Module, trainable: Sequence[str]) -> None:
    """Raise if something else was trained in a network that `freeze_except_blocks` froze.

    Raises:
        ValueError: If parameters outside of the blocks and of `trainable` are not frozen.

    Example:
        >>> check_all_saved(nn.Linear(2, 3), [])
    """
    if not any(_FROZEN in vars(module) for module in model.modules()):
        return
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    missing = sorted(set(names) - set(_trained_names(model, trainable, names)))
    if missing:
        raise ValueError(
            "trainable must name all that was trained beside the blocks, but "
            f"{', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} not frozen and would "
            f"be missing in the file; pass the names that insert got, such as "
            f"{[missing[0].rpartition('.')[0] or missing[0]]!r}"
        )


def _trained_names(
    model: nn.Module, trainable: Sequence[str], names: Iterable[str]
) -> Iterator[str]:
    """Return the names that are inside of the inserted blocks or match `trainable`."""
    modules = named_modules(model).items()
    prefixes = [name for name, module in modules if isinstance(module, InsertedBlock)]
    return (
        name
        for name in names
        if any(f"{name}.".startswith(f"{prefix}." if prefix else "") for prefix in prefixes)
        or any(_matches(name, pattern) for pattern in trainable)
    )


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name, or that of a module around it, has a pattern."""
    parts = name.split(".")
    parents = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(fnmatchcase(parent, pattern) for parent in parents)


def _own_buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers(recurse=False))


def _stay_in_eval(norm: nn.Module, _: object) -> None:
    """Forward pre-hook of frozen norms; a function of the module, so that it can be copied."""
    norm.training = False


def _save_buffers(module: nn.Module, _: object) -> None:
    """Forward pre-hook: remember the buffers of a frozen module in training mode."""
    if module.training:
        buffers = _own_buffers(module).items()
        vars(module)[_SAVED] = {name: (buffer, buffer.clone()) for name, buffer in buffers}


def _restore_buffers(module: nn.Module, _: object, __: object) -> None:
    """Forward hook: undo what the module did to its buffers, in place or by assignment."""
    own = cast("dict[str, Tensor]", vars(module)["_buffers"])
    for name, (buffer, saved) in vars(module).pop(_SAVED, {}).items():
        # `data`, since a version that counts up would forbid the backward pass.
        buffer.data.copy_(saved)
        own[name] = buffer


_HOOKS = (_stay_in_eval, _save_buffers, _restore_buffers)


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
        for spec in specs:
            block = _build_block(spec, site.channels, {**options, **_signal_options(spec, source)})
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
    # `add_module` refuses the names of methods.
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
            width = source.channels
            grid = source.grid
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
        if self.num_identity_scales:
            head += f", {self.num_identity_scales} of which are identity scales"
        if self.num_skipped:
            head += f"; {self.num_skipped} additions skipped"
        return "\n".join([head, *(f"  {site}" for site in self.sites), *self.notes])


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
        example: Example input: a tensor, or a tuple or list of all arguments. Its size determines
            the stages.
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
        num_parameters=sum(p.numel() for block in blocks for p in block.parameters()),
        num_identity_scales=sum(len(block.identity_scales) for block in blocks),
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
