"""Attention blocks by name: those of `visattn.blocks` and those that users register."""

from functools import cache
from typing import Any, TypeVar, get_args

from torch import nn

from visattn import blocks
from visattn.blocks.base import Block, BlockInfo, BlockKind
from visattn.io.messages import did_you_mean
from visattn.io.trusted_modules import import_trusted, user_trusted_modules

BlockClass = TypeVar("BlockClass", bound=type[nn.Module])

_registered: dict[str, type[nn.Module]] = {}


@cache
def _exported() -> dict[str, type[nn.Module]]:
    """Return the blocks of this package: every name in `blocks/__init__.pyi` that has an info."""
    exports = (getattr(blocks, name) for name in blocks.__all__)
    return {block.info.name: block for block in exports if hasattr(block, "info")}


def _known() -> dict[str, type[nn.Module]]:
    """Return all blocks, including those that modules in VISATTN_TRUST_MODULES register.

    These modules are named by the user: names in configs or weight files import nothing.
    """
    for module in user_trusted_modules():
        import_trusted(module)
    return _exported() | _registered


def create_block(name: str, channels: int, **options: Any) -> nn.Module:
    """Create a block by name.

    Args:
        name: A name from `list_blocks()`.
        channels: Number of input channels.
        options: Further arguments of the block, such as `reduction` or `kernel_size`.

    Raises:
        ValueError: If there is no such block.

    Example:
        >>> import torch
        >>> create_block("se", 32, reduction=8)(torch.zeros(1, 32, 5, 7)).shape
        torch.Size([1, 32, 5, 7])
    """
    return block_class(name)(channels, **options)


def list_blocks(kind: BlockKind | None = None) -> list[str]:
    """Return the names of all blocks, or of the blocks of one kind.

    Args:
        kind: `channel`, `spatial`, `combined`, `branch`, `self_attention` or `other`.

    Example:
        >>> list_blocks(kind="branch")
        ['sk', 'split']
    """
    infos = [block_info(block) for block in _known().values()]
    infos.sort(key=lambda info: get_args(BlockKind).index(info.kind))
    return [info.name for info in infos if kind in (None, info.kind)]


def register_block(block: BlockClass) -> BlockClass:
    """Register a block class for this process; also usable as a decorator.

    From then on `create_block`, `insert`, `list_blocks` and the models know it by the name in its
    `info`, or else by its class name in lowercase. Commands know it if VISATTN_TRUST_MODULES names
    the module that registers it.

    Args:
        block: Subclass of `torch.nn.Module` that maps features [batch, channels, height, width] to
            features of the same shape. The first argument of its constructor is `channels`; all
            others have defaults.

    Raises:
        ValueError: If a block of this package already has the name.

    Example:
        >>> from visattn.blocks import registry
        >>> getfixture("monkeypatch").setattr(registry, "_registered", {})
        >>> @register_block
        ... class Halved(nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> create_block("halved", 64)
        Halved()
    """
    name = block_info(block).name
    if _exported().get(name, block) is not block:
        raise ValueError(f"{name!r} is a block of visattn; give {block.__name__} another name")
    _registered[name] = block
    return block


def block_class(name: str) -> type[nn.Module]:
    """Return the class of a block.

    Raises:
        ValueError: If there is no such block.

    Example:
        >>> block_class("cbam").__name__
        'CBAM'
    """
    known = _known()
    if name not in known:
        raise ValueError(f"there is no block named {name!r}; {did_you_mean(name.lower(), known)}")
    return known[name]


def block_info(block: type[nn.Module]) -> BlockInfo:
    """Return the info of a block class; for a class without one, an info with its name.

    Example:
        >>> block_info(block_class("cbam")).paper
        'Woo et al. 2018, arXiv:1807.06521'
    """
    path = f"{block.__module__}.{block.__qualname__}"
    return getattr(block, "info", BlockInfo(block.__name__.lower(), "other", path))


def block_name(module: nn.Module) -> str | None:
    """Return the name of a block; None if the module is not a known block.

    Example:
        >>> block_name(create_block("cbam", 32)), block_name(nn.ReLU())
        ('cbam', None)
    """
    known = isinstance(module, Block) or type(module) in _registered.values()
    return block_info(type(module)).name if known else None
