"""Attention blocks inserted into a network, removed from it, and trained alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from visattn.blocks.registry import block_name, create_block
from visattn.insertion.sites import (
    Example,
    Position,
    Site,
    default_example,
    find_sites,
    matches,
    modes_restored,
    run_model,
)
from visattn.insertion.with_block import InsertedBlock, WithBlock, plain_modules

BlockSpec = str | Callable[..., nn.Module] | Sequence[str | Callable[..., nn.Module]]
Init = Literal["identity", "paper"]


@dataclass(frozen=True)
class Insertion:
    """Report of an insertion; printed, it lists the sites.

    Args:
        blocks: Names of the inserted blocks, in their order at each site.
        num_parameters: Number of added parameters, including identity scales.
        num_identity_scales: Number of identity scales, which no paper has.
    """

    blocks: tuple[str, ...]
    sites: tuple[Site, ...]
    num_parameters: int
    num_identity_scales: int

    def __str__(self) -> str:
        """Return a summary line and one line per site."""
        names, count = " + ".join(self.blocks), len(self.sites)
        head = f"{names} at {count} sites: {self.num_parameters:,} parameters"
        if self.num_identity_scales:
            head += f", {self.num_identity_scales} of which are identity scales"
        return "\n".join([head, *(f"  {site}" for site in self.sites)])


def insert(
    model: nn.Module,
    block: BlockSpec,
    *,
    position: Position = "residual",
    example: Example | None = None,
    init: Init = "identity",
    freeze: bool = False,
    trainable: Sequence[str] = (),
    **options: Any,
) -> Insertion:
    """Insert attention blocks after modules of a model, in place.

    A `WithBlock` takes the place of each of these modules; checkpoints of the model still load. The
    model runs twice on the example in evaluation mode: to find the sites, and to check that every
    block runs as often as its site. Insert before wrapping a model for several processes.

    Args:
        model: Any model, from torchvision, timm or your own.
        block: Block name, a function from a number of channels to a module, or a list of these,
            which are applied in order at each site.
        position: Sites: `residual` (end of each residual branch, before the addition, drop path and
            layer scale), `stage_end` (end of each stage of a timm model, by its `feature_info`), a
            pattern of module names in which `*` matches one component and `**` any number, a list
            of module names, or a predicate of name and module.
        example: Example input: a tensor, or a tuple or list of all arguments. By default a blank
            image of the size that models of timm, torchvision and visattn tell.
        init: `identity`: x + scale (block(x) - x) with a scale of zero, so that the output of the
            model does not change; a block that starts as the identity gets no scale (`stn` then
            differs by rounding, 1e-7). `paper`: the block as published.
        freeze: Train the blocks alone: see `freeze_except_blocks`; `save_blocks` saves them.
        trainable: With `freeze`, names of further modules that are trained, such as `fc`.
        options: Arguments of the blocks, such as `reduction`.

    Raises:
        ValueError: If there is no such site, block or argument, or a site cannot hold a block.

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
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        # Its processes would not exchange the gradients of the blocks.
        raise ValueError("insert into the module of DistributedDataParallel, then wrap it")
    if example is None:
        example = default_example(model)
    specs = [block] if isinstance(block, str) or callable(block) else block
    modules = plain_modules(model)
    inserted = {
        site: _match_host(_build(specs, site, options, identity=init == "identity"), model, site)
        for site in find_sites(model, position, example)
    }
    for site, blocks in inserted.items():
        host = modules[site.name]
        _replace(model, host, WithBlock(host, blocks.train(host.training)))
    try:
        _check_calls(model, inserted, example)
        if freeze:
            freeze_except_blocks(model, trainable)
    except BaseException:
        remove(model, position=[site.name for site in inserted])
        raise
    all_blocks = nn.ModuleList(inserted.values())
    scales = [name for name, _ in all_blocks.named_parameters() if name.endswith("_scale")]
    return Insertion(
        blocks=next(iter(inserted.values())).names,
        sites=tuple(inserted),
        num_parameters=sum(p.numel() for p in all_blocks.parameters()),
        num_identity_scales=len(scales),
    )


def _build(
    specs: Sequence[str | Callable[..., nn.Module]],
    site: Site,
    options: dict[str, Any],
    *,
    identity: bool,
) -> InsertedBlock:
    """Return new blocks for a site.

    With `identity`, a block that changes features at initialization gets an identity scale. A block
    that starts as the identity by a zero weight of its own gets none, since no gradient would pass
    two zeros.
    """
    blocks: dict[str, nn.Module] = {}
    scaled: list[str] = []
    x = torch.randn(1, site.channels, *site.grid, generator=torch.Generator().manual_seed(0))
    for spec in specs:
        make = partial(create_block, spec) if isinstance(spec, str) else spec
        made = make(site.channels, **options)
        name = _unique_name(made, blocks)
        with torch.no_grad(), modes_restored(made):
            y = made(x)
        if y.shape != x.shape:
            raise ValueError(
                f"a block must preserve the shape of its input, but {name} after {site.name} "
                f"returned {list(y.shape)} for {list(x.shape)}"
            )
        blocks[name] = made
        if identity and not torch.allclose(y, x, rtol=1e-5, atol=1e-5):
            scaled.append(name)
    return InsertedBlock(blocks, scaled, channels_last=site.channels_last)


def _unique_name(block: nn.Module, taken: Mapping[str, nn.Module]) -> str:
    """Return a name that a child module may have."""
    name = re.sub(
        r"\W", "_", (block_name(block) or type(block).__name__).rpartition(".")[2].lower()
    )
    name = f"{name}_block" if hasattr(nn.Module, name) else name
    count = sum(re.fullmatch(rf"{name}\d*", other) is not None for other in taken)
    return f"{name}{count + 1}" if count else name


def _match_host(blocks: InsertedBlock, model: nn.Module, site: Site) -> InsertedBlock:
    """Return blocks on the device of their host, with its dtype."""
    weights = [*model.get_submodule(site.name).parameters(), *model.parameters()]
    like = next((weight for weight in weights if weight.is_floating_point()), torch.zeros(1))
    return blocks.to(like.device, like.dtype)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another one, wherever the model holds it."""
    for parent in list(model.modules()):
        children = cast("dict[str, nn.Module | None]", vars(parent)["_modules"])
        for name in [name for name, child in children.items() if child is old]:
            children[name] = new


def _check_calls(
    model: nn.Module, inserted: Mapping[Site, InsertedBlock], example: Example
) -> None:
    """Run the model and raise unless every block runs as often as its site did."""
    calls: list[object] = []

    def called(block: object, *_: object) -> None:
        calls.append(block)

    hooks = [blocks.register_forward_hook(called) for blocks in inserted.values()]
    try:
        with torch.no_grad(), modes_restored(model):
            run_model(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    for site, blocks in inserted.items():
        if calls.count(blocks) != site.num_calls:
            raise ValueError(
                f"no block can be inserted after {site.name}: it ran {site.num_calls} times, the "
                f"block {calls.count(blocks)} times; the model reaches it by more than its name"
            )


def remove(
    model: nn.Module,
    block: str | type[nn.Module] | None = None,
    *,
    position: str | Sequence[str] | None = None,
) -> list[str]:
    """Remove inserted blocks from a model, and return their sites.

    Without its last block the model is as before: modules, names, hooks, order and modes, and what
    `freeze=True` froze.

    Args:
        model: Model with inserted blocks.
        block: The blocks that are removed, by name or class; all of a site if None.
        position: Sites: a pattern of module names or a list of names; all if None.

    Raises:
        ValueError: If there are no such blocks.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = insert(model, "se", position="0", example=torch.zeros(1, 3, 5, 7))
        >>> remove(model)
        ['0']
        >>> model
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
        )
    """
    hosts = {n: m for n, m in plain_modules(model).items() if isinstance(m, WithBlock)}
    removed: list[str] = []
    for site, host in hosts.items():
        here = position is None or (
            matches(site, position) if isinstance(position, str) else site in position
        )
        blocks = dict(host.visattn.named_children()) if here else {}
        chosen = [name for name, module in blocks.items() if _is_kind(name, module, block)]
        removed += [site] * bool(chosen)
        for name in chosen:
            delattr(host.visattn, name)
            delattr(host.visattn, f"{name}_scale")
        if not host.visattn.names:
            _replace(model, host, host.host)
    if not removed:
        listed = ", ".join(f"{n} ({' + '.join(m.visattn.names)})" for n, m in hosts.items())
        raise ValueError(f"there are no such blocks to remove; the model has {listed or 'none'}")
    if not any(isinstance(module, WithBlock) for module in model.modules()):
        _unfreeze(model)
    return removed


def _is_kind(name: str, module: nn.Module, block: str | type[nn.Module] | None) -> bool:
    if isinstance(block, type):
        return isinstance(module, block)
    return block in (None, name, block_name(module))


# ------------------------------------------------------------------ training of blocks alone

_FROZEN = "visattn_frozen"
"""Attribute of a module: the names of its own parameters that `freeze_except_blocks` froze."""


def freeze_except_blocks(model: nn.Module, trainable: Sequence[str] = ()) -> list[str]:
    """Freeze a network with inserted blocks, except for these; return the trainable parameters.

    Training then changes nothing outside of the blocks and of `trainable`, so that the network
    without its blocks remains the pretrained one. Parameters get `requires_grad=False`. Modules
    with statistics of their own, batch norms above all, stay in evaluation mode during
    `model.train()`. `remove` reverses this.

    Args:
        model: The network, after `insert`.
        trainable: Names of further modules or parameters that are trained, such as the classifier
            `fc`; `*` matches any characters.

    Raises:
        ValueError: If a name matches nothing.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> _ = insert(model, "eca", position="1", example=torch.randn(1, 3, 11, 13))
        >>> freeze_except_blocks(model)
        ['1.visattn.eca_scale', '1.visattn.eca.conv.weight']
        >>> model.train()[1].weight.requires_grad
        False

    Source:
        Houlsby et al. 2019, arXiv:1902.00751, trains small inserted modules in a frozen network.
    """
    trained = trained_tensors(model, trainable)
    kept = {id(tensor) for tensor in trained.values()}
    _unfreeze(model)
    blocks = [module for module in model.modules() if isinstance(module, InsertedBlock)]
    inside = {id(module) for block in blocks for module in block.modules()}
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        own_buffers = {id(buffer) for buffer in module.buffers(recurse=False)}
        frozen = {n: p for n, p in own.items() if p.requires_grad and id(p) not in kept}
        for parameter in frozen.values():
            parameter.requires_grad = False
            parameter.grad = None  # an optimizer would still apply a gradient from before
        for parameter in own.values():
            if id(parameter) in kept:
                parameter.requires_grad = True
        if frozen:  # names, so that a copy of the model can be unfrozen, too
            vars(module)[_FROZEN] = tuple(frozen)
        if _has_statistics(module) and id(module) not in inside and not (own_buffers <= kept):
            # First of all hooks, since that of `spectral_norm` updates its vectors in training.
            module.register_forward_pre_hook(_stay_in_eval, prepend=True)
    return [name for name, tensor in trained.items() if tensor.requires_grad]


def trained_tensors(model: nn.Module, trainable: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return parameters and buffers of the inserted blocks and of the modules named `trainable`.

    Raises:
        ValueError: If a name matches nothing.

    Example:
        >>> sorted(trained_tensors(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["1"]))
        ['1.bias', '1.weight']
    """
    state = _state(model)
    for pattern in trainable:
        if not any(_names_it(pattern, name) for name in state):
            raise ValueError(
                f"trainable must name modules or parameters of the model, but {pattern!r} matches "
                f"none; its modules are {', '.join(name for name, _ in model.named_children())}"
            )
    blocks = [module for module in model.modules() if isinstance(module, InsertedBlock)]
    inside = {id(tensor) for block in blocks for tensor in _state(block).values()}
    return {
        name: tensor
        for name, tensor in state.items()
        if id(tensor) in inside or any(_names_it(pattern, name) for pattern in trainable)
    }


def check_all_saved(model: nn.Module, trainable: Sequence[str]) -> None:
    """Raise if something else was trained in a network that `freeze_except_blocks` froze.

    Raises:
        ValueError: If parameters outside of the blocks and of `trainable` are not frozen.
    """
    if not any(_FROZEN in vars(module) for module in model.modules()):
        return
    trained = [name for name, tensor in _state(model).items() if tensor.requires_grad]
    missing = sorted(set(trained) - set(trained_tensors(model, trainable)))
    if missing:
        raise ValueError(
            "trainable must name all that was trained beside the blocks, but "
            f"{', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} not frozen and would "
            f"be missing in the file; pass the names that insert got, such as "
            f"{[missing[0].rpartition('.')[0] or missing[0]]!r}"
        )


def _state(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the parameters and saved buffers of a model by their keys, not detached."""
    return cast("Mapping[str, Tensor]", model.state_dict(keep_vars=True))


def _names_it(pattern: str, name: str) -> bool:
    """Return whether a pattern is that of a name, or of a module around it."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _has_statistics(module: nn.Module) -> bool:
    """Return whether a module changes buffers of its own while it is trained, as norms do."""
    own = dict(module.named_buffers(recurse=False))
    leaf = not any(True for _ in module.children())
    return any(name.startswith("running_") for name in own) or (
        leaf and any(buffer.is_floating_point() for buffer in own.values())
    )


def _stay_in_eval(module: nn.Module, _: object) -> None:
    """Forward pre-hook of frozen norms; a function of the module, so that it can be copied."""
    module.training = False


def _unfreeze(model: nn.Module) -> None:
    """Reverse `freeze_except_blocks`; nothing happens to a model that was not frozen by it."""
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
        hooks = cast("dict[int, object]", vars(module)["_forward_pre_hooks"])
        for key in [key for key, hook in hooks.items() if hook is _stay_in_eval]:
            del hooks[key]
