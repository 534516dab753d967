"""All blocks by name."""

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, get_args, overload

from torch import nn

from visattn.blocks.base import Block, BlockInfo, Kind
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
from visattn.blocks.external import check_class, imported, path_of, plain_card
from visattn.blocks.self_attention.botnet import BoTNetAttention
from visattn.blocks.self_attention.criss_cross import CrissCrossAttention
from visattn.blocks.self_attention.danet import DANet
from visattn.blocks.self_attention.double_attention import DoubleAttention
from visattn.blocks.self_attention.non_local import NonLocal
from visattn.blocks.spatial.attention_gate import AttentionGate
from visattn.blocks.spatial.spatial_gate import SpatialGate, SpatialSE
from visattn.blocks.spatial.spatial_transformer import SpatialTransformer

BlockClass = TypeVar("BlockClass", bound=type[nn.Module])

BLOCKS: dict[str, type[Block]] = {
    block.card.name: block
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
    card: BlockInfo


_registered: dict[str, _Entry] = {}
_imported: dict[str, _Entry] = {}
"""Classes that were named by their path, by that path."""


def create(name: str, channels: int, **options: Any) -> nn.Module:
    """Return a block by its name in the catalog.

    Args:
        name: One of `names()`, or another name that the block goes by: "SE", "squeeze_excite",
            "non-local"; case, hyphens and underscores do not matter. Or the class of a block as
            `package.module.Class`, of a module that configs may import.
        channels: Width of the features that it is to take.
        options: What the block takes besides, as `reduction` or `kernel`.

    Raises:
        ValueError: If there is no such block, if it takes no such option, or if its module may not
            be imported.
        TypeError: If the class that is named cannot be a block.

    Example:
        >>> import torch
        >>> create("SE", 32, reduction=8)(torch.zeros(1, 32, 5, 7)).shape
        torch.Size([1, 32, 5, 7])
    """
    block = block_class(name)
    parameters = list(inspect.signature(block).parameters.values())[1:]
    known = [option.name for option in parameters if option.kind != option.VAR_KEYWORD]
    wrong = sorted(set(options) - set(known))
    if wrong and len(known) == len(parameters):
        raise ValueError(
            f"{name} takes no {', '.join(wrong)}; it takes {', '.join(known) or 'no options'}"
        )
    return block(channels, **options)


def names(kind: Kind | None = None) -> list[str]:
    """Return the names of all blocks, or of those of a kind.

    Raises:
        ValueError: If there is no such kind.

    Example:
        >>> "se" in names(kind="channel")
        True
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    return [name for name, entry in _entries().items() if kind in (None, entry.card.kind)]


def info(name: str) -> BlockInfo:
    """Return the card of a block: paper, equation, parameters, and where we deviate.

    Args:
        name: As `create` takes it.

    Raises:
        ValueError: If there is no such block, or if its module may not be imported.
        TypeError: If the class that is named cannot be a block.

    Example:
        >>> info("SE").equation
        'y = x * s(W2 relu(W1 mean(x) + b1) + b2)'
    """
    return _entry(name).card


@overload
def register(block: BlockClass, *, name: str | None = None) -> BlockClass: ...


@overload
def register(
    block: None = None, *, name: str | None = None
) -> Callable[[BlockClass], BlockClass]: ...


def register(
    block: BlockClass | None = None, *, name: str | None = None
) -> BlockClass | Callable[[BlockClass], BlockClass]:
    """Add a block of your own to the catalog, for this process; also as a decorator.

    `create`, `insert`, `names`, `info`, the networks, the conformance suite and `visattn blocks`
    know it from then on, by its name or as `package.module.Class`.

    Args:
        block: A class of `torch.nn.Module` that takes features [batch, channels, height, width] and
            returns features of the same shape. Its constructor takes the channels first, and all
            its other arguments have defaults. A class attribute `card` says what `info` returns.
        name: In the catalog; the name of the class in lower case if None.

    Returns:
        The class as it is.

    Raises:
        TypeError: If it is no such class.
        ValueError: If the name is taken by another block, or is no plain word.

    Example:
        >>> from visattn.blocks import registry
        >>> getfixture("monkeypatch").setattr(registry, "_registered", {})
        >>> @register
        ... class Halved(nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> create("halved", 64)
        Halved()
    """
    if block is None:
        return lambda given: register(given, name=name)
    made = check_class(block)
    card = getattr(made, "card", None)
    card = card if isinstance(card, BlockInfo) else None
    word = name or (card.name if card else made.__name__.lower())
    if not re.fullmatch(r"[A-Za-z](\w|-)*", word) or word.lower() == "none":
        raise ValueError(f"a block is named by a word such as my_block, got {word!r}")
    other = _spellings().get(_key(word))
    taken = _entries()[other].block if other else None
    if taken is not None and path_of(taken) != path_of(made):  # a cell that ran again is the same
        raise ValueError(
            f"the name {word!r} is taken by the block {other} ({path_of(taken)}); "
            f"give another: va.register({made.__name__}, name=...)"
        )
    if other in BLOCKS:
        return block
    aliases = tuple(a for a in card.aliases if _key(a) not in _spellings()) if card else ()
    told = replace(card, name=word, aliases=aliases) if card else plain_card(made, word)
    _registered[other or word] = _Entry(made, told)
    return block


def block_class(name: str) -> type[nn.Module]:
    """Return the class of a block, by a name as `create` takes it.

    Raises:
        ValueError: If there is no such block, or if its module may not be imported.
        TypeError: If the class that is named cannot be a block.

    Example:
        >>> block_class("CBAM").__name__
        'CBAM'
    """
    return _entry(name).block


def is_known(name: str) -> bool:
    """Return whether a block can be made by a name without anything being imported for it.

    Example:
        >>> is_known("CBAM"), is_known("my_package.MyBlock")
        (True, False)
    """
    return _known(name) is not None


def name_of(module: nn.Module) -> str | None:
    """Return the name of a block in the catalog; None of what is no block.

    Example:
        >>> name_of(create("CBAM", 32)), name_of(nn.ReLU())
        ('cbam', None)
    """
    for name, entry in {**_entries(), **_imported}.items():
        if type(module) is entry.block:
            return name
    return type(module).__name__ if isinstance(module, Block) else None


def _entries() -> dict[str, _Entry]:
    """Return all blocks by name, ours first."""
    return {name: _Entry(block, block.card) for name, block in BLOCKS.items()} | _registered


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def _spellings() -> dict[str, str]:
    """Return the names of blocks by all that they are called; what they are named as comes last."""
    entries = _entries()
    by_class = {_key(entry.block.__name__): name for name, entry in entries.items()}
    by_alias = {_key(a): name for name, entry in entries.items() for a in entry.card.aliases}
    return {**by_class, **by_alias, **{_key(name): name for name in entries}}


def _known(name: str) -> _Entry | None:
    entries = _entries()
    if "." not in name:
        spelt = _spellings().get(_key(name))
        return entries[spelt] if spelt else None
    paths = {path_of(entry.block): entry for entry in entries.values()}
    return paths.get(name) or _imported.get(name)


def _entry(name: str) -> _Entry:
    if known := _known(name):
        return known
    if "." in name:
        block = imported(name)
        _imported[name] = _Entry(block, plain_card(block, name))
        return _imported[name]
    spellings = _spellings()
    close = difflib.get_close_matches(_key(name), spellings, n=5, cutoff=0.6)
    near = list(dict.fromkeys(spellings[key] for key in close))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names())}"
    raise ValueError(
        f"there is no block {name!r}; {hint} (a block of your own: call va.register(MyBlock) "
        "first, or name it as package.module.Class)"
    )
