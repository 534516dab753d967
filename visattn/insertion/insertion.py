"""Insert attention blocks into a network, remove them, and train only them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from visattn.blocks.registry import block_info, create_block
from visattn.insertion.sites import (
    Example,
    Position,
    Site,
    default_example,
    find_sites,
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
        num_identity_scales: Number of identity scales, which are not part of the papers.
    """

    blocks: tuple[str, ...]
    sites: tuple[Site, ...]
    num_parameters: int
    num_identity_scales: int

    def __str__(self) -> str:
        """Return a summary line and one line per site."""
        counts = f"{self.num_parameters:,} parameters, {self.num_identity_scales} identity scales"
        head = f"{' + '.join(self.blocks)} at {len(self.sites)} sites: {counts}"
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

    Each of these modules is replaced by a `WithBlock`; checkpoints of the model still load. The
    model runs twice on the example in evaluation mode: to find the sites, and to check that every
    block runs. Insert blocks before wrapping the model in `DistributedDataParallel`.

    Args:
        model: Any model, from torchvision, timm or your own.
        block: Block name, a function from a number of channels to a module, or a list of these,
            which are applied in order at each site.
        position: Sites: `residual` (end of each residual branch, before the addition, drop path and
            layer scale), `stage_end` (end of each stage of a timm model, by its `feature_info`), a
            pattern of module names in which `*` matches one component and `**` any number, a list
            of module names, or a predicate of name and module.
        example: Example input: a tensor, or a tuple or list of all arguments. By default a blank
            image, for models of timm, torchvision and visattn, whose input size is known.
        init: `identity`: x + scale (block(x) - x) with a scale of zero, so that the output of the
            model does not change; a block that starts as the identity gets no scale (`stn` then
            differs by rounding, 1e-7). `paper`: the block as published.
        freeze: Train only the blocks: see `freeze_except_blocks`; `save_blocks` saves them.
        trainable: With `freeze`, names of further modules that are trained, such as `fc`.
        options: Arguments of the blocks, such as `reduction`.

    Raises:
        ValueError: If there is no such site, block or argument, or no block can be inserted there.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1))
        >>> x = torch.randn(1, 3, 11, 13)
        >>> before = model(x)
        >>> print(insert(model, "se", position="1", example=x, reduction=2))
        se at 1 sites: 77 parameters, 1 identity scales
          1  8 x 9 x 11
        >>> torch.equal(model(x), before)
        True
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        # It would not synchronize the gradients of the blocks.
        raise ValueError("insert blocks before wrapping the model in DistributedDataParallel")
    if example is None:
        example = default_example(model)
    specs = [block] if isinstance(block, str) or callable(block) else block
    modules = plain_modules(model)
    inserted: dict[Site, WithBlock] = {}
    for site in find_sites(model, position, example):
        host = modules[site.name]
        weights = [*host.parameters(), *model.parameters()]
        like = next((weight for weight in weights if weight.is_floating_point()), torch.zeros(1))
        blocks = _build(specs, site, options, identity=init == "identity")
        blocks.to(like.device, like.dtype).train(host.training)
        inserted[site] = WithBlock(host, blocks)
    try:
        for host in inserted.values():
            _replace(model, host.host, host)
        _check_run(model, inserted, example)
        if freeze:
            freeze_except_blocks(model, trainable)
    except BaseException:
        for host in inserted.values():
            _replace(model, host, host.host)
        raise
    added = [p for host in inserted.values() for p in host.visattn.named_parameters()]
    return Insertion(
        blocks=next(iter(inserted.values())).visattn.names,
        sites=tuple(inserted),
        num_parameters=sum(parameter.numel() for _, parameter in added),
        num_identity_scales=sum(name.endswith("_scale") for name, _ in added),
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
    that starts as the identity by its own zero weight gets none, since two zero factors would block
    the gradient.
    """
    blocks: dict[str, nn.Module] = {}
    scaled: list[str] = []
    x = torch.randn(1, site.channels, *site.grid, generator=torch.Generator().manual_seed(0))
    for spec in specs:
        make = partial(create_block, spec) if isinstance(spec, str) else spec
        made = make(site.channels, **options)
        same = sum(type(other) is type(made) for other in blocks.values())
        name = block_info(type(made)).name + (str(same + 1) if same else "")
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


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module by another one, wherever it occurs in the model."""
    for parent in list(model.modules()):
        children = cast("dict[str, nn.Module | None]", vars(parent)["_modules"])
        for name in [name for name, child in children.items() if child is old]:
            children[name] = new


def _check_run(model: nn.Module, inserted: Mapping[Site, WithBlock], example: Example) -> None:
    """Run the model and raise unless every block runs."""
    ran = set[nn.Module]()

    def note(host: nn.Module, *_: object) -> None:
        ran.add(host)

    with torch.no_grad(), modes_restored(model), ExitStack() as stack:
        for host in inserted.values():
            stack.callback(host.register_forward_hook(note).remove)
        run_model(model, example)
    for site, host in inserted.items():
        if host not in ran:
            raise ValueError(
                f"no block can be inserted after {site.name}: the model calls it through another "
                "reference, such as a list"
            )


def remove(model: nn.Module) -> list[str]:
    """Remove all inserted blocks from a model, and return their sites.

    This restores the modules, names, hooks, order and modes of the model, and unfreezes the
    parameters that `freeze=True` froze.

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
    for host in hosts.values():
        _replace(model, host, host.host)
    _unfreeze(model)
    return list(hosts)


# ------------------------------------------------------------------ training of blocks alone

_FROZEN = "visattn_frozen"
"""Attribute of a module: the names of its own parameters that `freeze_except_blocks` froze."""


def freeze_except_blocks(model: nn.Module, trainable: Sequence[str] = ()) -> list[str]:
    """Freeze a network except for its inserted blocks; return the names of trainable parameters.

    Training then changes nothing outside of the blocks and of `trainable`, so that the network
    without its blocks remains the pretrained one. Parameters get `requires_grad=False`; modules
    with running statistics, such as batch norms, stay in evaluation mode during `model.train()`.
    `remove` reverses this.

    Args:
        model: The network, after `insert`.
        trainable: Names of further modules or parameters to train, such as the classifier `fc`; `*`
            matches any characters.

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
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        for parameter in own.values():
            if id(parameter) in kept:
                parameter.requires_grad = True
        frozen = [n for n, p in own.items() if p.requires_grad and id(p) not in kept]
        for name in frozen:
            own[name].requires_grad = False
            own[name].grad = None  # an optimizer would still apply an earlier gradient
        if frozen:  # by name, so that a copy of the model can be unfrozen, too
            vars(module)[_FROZEN] = frozen
        statistics = {id(buffer) for buffer in _statistics(module)}
        if not statistics <= kept:
            # before other hooks, since that of `spectral_norm` updates its vectors in training mode
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
        if not any(fnmatchcase(f"{name}.", f"{pattern}.*") for name in state):
            raise ValueError(
                f"trainable must name modules or parameters of the model, but {pattern!r} matches "
                f"none; its modules are {', '.join(name for name, _ in model.named_children())}"
            )
    blocks = [module for module in model.modules() if isinstance(module, InsertedBlock)]
    inside = {id(tensor) for block in blocks for tensor in _state(block).values()}
    return {
        name: tensor
        for name, tensor in state.items()
        if id(tensor) in inside
        or any(fnmatchcase(f"{name}.", f"{pattern}.*") for pattern in trainable)
    }


def check_all_saved(model: nn.Module, trainable: Sequence[str]) -> None:
    """Check that nothing else was trained in a network that `freeze_except_blocks` froze.

    Raises:
        ValueError: If parameters outside of the blocks and of `trainable` are not frozen.
    """
    if not any(_FROZEN in vars(module) for module in model.modules()):
        return
    trained = [name for name, tensor in _state(model).items() if tensor.requires_grad]
    missing = sorted(set(trained) - set(trained_tensors(model, trainable)))
    if missing:
        raise ValueError(
            f"{', '.join(missing[:3])} would be missing from the file; pass the same names as to "
            f"insert, such as trainable={[missing[0].rpartition('.')[0] or missing[0]]!r}"
        )


def _state(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the parameters and saved buffers of a model by their keys, not detached."""
    return cast("Mapping[str, Tensor]", model.state_dict(keep_vars=True))


def _statistics(module: nn.Module) -> list[Tensor]:
    """Return the buffers that a layer updates in training, such as running statistics."""
    is_layer = not any(True for _ in module.children())
    return [b for b in module.buffers(recurse=False) if is_layer and b.is_floating_point()]


def _stay_in_eval(module: nn.Module, _: object) -> None:
    """Forward pre-hook of frozen norms; not a closure, so that the module can be copied."""
    module.training = False


def _unfreeze(model: nn.Module) -> None:
    """Reverse `freeze_except_blocks`; other models are left unchanged."""
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
        hooks = cast("dict[int, object]", vars(module)["_forward_pre_hooks"])
        for key in [key for key, hook in hooks.items() if hook is _stay_in_eval]:
            del hooks[key]
