"""Registry of attention blocks: create, list, describe and register blocks by name."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args, overload

from torch import nn

from visattn.blocks.base import Block, BlockInfo, BlockKind
from visattn.blocks.branch.selective_kernel import SelectiveKernel
from visattn.blocks.branch.split_attention import SplitAttention
from visattn.blocks.channel.eca import ECA
from visattn.blocks.channel.gct import GCT
from visattn.blocks.channel.global_context import GlobalContext
from visattn.blocks.channel.squeeze_excite import EffectiveSE, SqueezeExcite
from visattn.blocks.channel.srm import SRM
from visattn.blocks.combined.bam import BAM
from visattn.blocks.combined.cbam import CBAM
from visattn.blocks.combined.coordinate import CoordinateAttention
from visattn.blocks.combined.scse import SCSE
from visattn.blocks.combined.simam import SimAM
from visattn.blocks.combined.triplet import TripletAttention
from visattn.blocks.external import check_block_class, default_info, import_block, import_path
from visattn.blocks.self_attention.botnet import BoTNetAttention
from visattn.blocks.self_attention.criss_cross import CrissCrossAttention
from visattn.blocks.self_attention.danet import DANet
from visattn.blocks.self_attention.double_attention import DoubleAttention
from visattn.blocks.self_attention.non_local import NonLocal
from visattn.blocks.spatial.attention_gate import AttentionGate
from visattn.blocks.spatial.spatial_gate import SpatialGate, SpatialSE
from visattn.blocks.spatial.spatial_transformer import SpatialTransformer
from visattn.io.argument_checks import check_arguments, checked_arguments
from visattn.io.messages import did_you_mean

BlockClass = TypeVar("BlockClass", bound=type[nn.Module])

BLOCKS: dict[str, type[Block]] = {
    block.info.name: block
    for block in (
        SqueezeExcite,
        EffectiveSE,
        ECA,
        SRM,
        GCT,
        GlobalContext,
        SpatialGate,
        SpatialSE,
        AttentionGate,
        SpatialTransformer,
        CBAM,
        BAM,
        SCSE,
        CoordinateAttention,
        TripletAttention,
        SimAM,
        SelectiveKernel,
        SplitAttention,
        NonLocal,
        DANet,
        CrissCrossAttention,
        DoubleAttention,
        BoTNetAttention,
    )
}


class _Entry(NamedTuple):
    block: type[nn.Module]
    info: BlockInfo


_registered: dict[str, _Entry] = {}
_imported: dict[str, _Entry] = {}
"""Blocks that were created by import path, by that path."""


@checked_arguments(channels=(1, 1_000_000))
def create_block(name: str, channels: int, **options: Any) -> nn.Module:
    """Create a block by name.

    Args:
        name: A name from `list_blocks()` or an alias such as "SE", "squeeze_excite" or "non-local";
            case, hyphens and underscores are ignored. Or the import path `package.module.Class` of
            a block class in a trusted module.
        channels: Number of input channels.
        options: Further arguments of the block, such as `reduction` or `kernel_size`.

    Raises:
        ValueError: If there is no such block, if it has no such argument, or if its module is not
            trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> import torch
        >>> create_block("SE", 32, reduction=8)(torch.zeros(1, 32, 5, 7)).shape
        torch.Size([1, 32, 5, 7])
    """
    block = block_class(name)
    parameters = list(inspect.signature(block).parameters.values())[1:]
    known = [option.name for option in parameters if option.kind != option.VAR_KEYWORD]
    wrong = sorted(set(options) - set(known))
    if wrong and len(known) == len(parameters):
        raise ValueError(
            f"{name} has no argument {', '.join(wrong)}; "
            f"its arguments are {', '.join(known) or 'none'}"
        )
    check_arguments(block, options)
    return block(channels, **options)


@checked_arguments()
def list_blocks(kind: BlockKind | None = None) -> list[str]:
    """Return the names of all blocks, or of the blocks of one kind.

    Args:
        kind: `channel`, `spatial`, `combined`, `branch`, `self_attention` or `other`.

    Raises:
        ValueError: If there is no such kind.

    Example:
        >>> "se" in list_blocks(kind="channel")
        True
    """
    if kind is not None and kind not in get_args(BlockKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(BlockKind))}, got {kind!r}")
    return [name for name, entry in _all_entries().items() if kind in (None, entry.info.kind)]


@checked_arguments()
def block_info(name: str) -> BlockInfo:
    """Return the metadata of a block: paper, equation, number of parameters, deviations.

    Args:
        name: Name, alias or import path, as for `create_block`.

    Raises:
        ValueError: If there is no such block, or if its module is not trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> block_info("SE").equation
        'y = x * s(W2 relu(W1 mean(x) + b1) + b2)'
    """
    return _get_entry(name).info


@overload
def register_block(block: BlockClass, *, name: str | None = None) -> BlockClass: ...


@overload
def register_block(
    block: None = None, *, name: str | None = None
) -> Callable[[BlockClass], BlockClass]: ...


def register_block(
    block: BlockClass | None = None, *, name: str | None = None
) -> BlockClass | Callable[[BlockClass], BlockClass]:
    """Register a block class for this process; also usable as a decorator.

    From then on `create_block`, `insert`, `list_blocks`, `block_info`, the models, the conformance
    suite and `visattn blocks` accept it by name or as `package.module.Class`.

    Args:
        block: Subclass of `torch.nn.Module` that maps features [batch, channels, height, width] to
            features of the same shape. The first argument of its constructor is `channels`; all
            others have defaults. A class attribute `info` of type `BlockInfo` holds its metadata.
        name: Name in the registry; the lowercase class name if None.

    Returns:
        The class, unchanged.

    Raises:
        TypeError: If the class cannot be used as a block.
        ValueError: If the name belongs to another block or is not an identifier.

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
    if block is None:
        return lambda decorated: register_block(decorated, name=name)
    cls = check_block_class(block)
    info = getattr(cls, "info", None)
    info = info if isinstance(info, BlockInfo) else None
    new_name = name or (info.name if info else cls.__name__.lower())
    if not re.fullmatch(r"[A-Za-z](\w|-)*", new_name) or new_name.lower() == "none":
        raise ValueError(f"the name of a block must be an identifier, got {new_name!r}")
    names = _canonical_names()
    existing = names.get(_normalize(new_name))
    registered = _all_entries()[existing].block if existing else None
    # A notebook cell that runs again defines the same class anew.
    if registered is not None and import_path(registered) != import_path(cls):
        raise ValueError(
            f"the name {new_name!r} is taken by the block {existing} ({import_path(registered)}); "
            f"choose another: va.register_block({cls.__name__}, name=...)"
        )
    if existing in BLOCKS:
        return block
    aliases = (
        tuple(alias for alias in info.aliases if _normalize(alias) not in names) if info else ()
    )
    new_info = (
        replace(info, name=new_name, aliases=aliases) if info else default_info(cls, new_name)
    )
    _registered[existing or new_name] = _Entry(cls, new_info)
    return block


def block_class(name: str) -> type[nn.Module]:
    """Return the class of a block by name, alias or import path.

    Raises:
        ValueError: If there is no such block, or if its module is not trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> block_class("CBAM").__name__
        'CBAM'
    """
    return _get_entry(name).block


def is_registered(name: str) -> bool:
    """Return whether a name belongs to a registered block; imports nothing.

    Example:
        >>> is_registered("CBAM"), is_registered("my_package.MyBlock")
        (True, False)
    """
    return _find_entry(name) is not None


def block_name(module: nn.Module) -> str | None:
    """Return the registered name of a block; None if the module is not a block.

    Example:
        >>> block_name(create_block("CBAM", 32)), block_name(nn.ReLU())
        ('cbam', None)
    """
    for name, entry in {**_all_entries(), **_imported}.items():
        if type(module) is entry.block:
            return name
    return type(module).__name__ if isinstance(module, Block) else None


def _all_entries() -> dict[str, _Entry]:
    """Return all blocks by name, built-in blocks first."""
    return {name: _Entry(block, block.info) for name, block in BLOCKS.items()} | _registered


def _normalize(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def _canonical_names() -> dict[str, str]:
    """Return the block name for every normalized name, alias and class name; names win."""
    entries = _all_entries()
    by_class = {_normalize(entry.block.__name__): name for name, entry in entries.items()}
    by_alias = {_normalize(a): name for name, entry in entries.items() for a in entry.info.aliases}
    return {**by_class, **by_alias, **{_normalize(name): name for name in entries}}


def _find_entry(name: str) -> _Entry | None:
    entries = _all_entries()
    if "." not in name:
        canonical = _canonical_names().get(_normalize(name))
        return entries[canonical] if canonical else None
    paths = {import_path(entry.block): entry for entry in entries.values()}
    return paths.get(name) or _imported.get(name)


def _get_entry(name: str) -> _Entry:
    if entry := _find_entry(name):
        return entry
    if "." in name:
        block = import_block(name)
        _imported[name] = _Entry(block, default_info(block, name))
        return _imported[name]
    choices = f"choose from {', '.join(list_blocks())}"
    names = _canonical_names()
    hint = did_you_mean(_normalize(name), names, canonical=names, otherwise=choices)
    raise ValueError(
        f"there is no block named {name!r}; {hint} (a block of your own: call "
        "va.register_block(MyBlock) first, or pass package.module.Class)"
    )
