"""All blocks by name."""

import difflib
import inspect
from typing import Any, get_args

from visattn.blocks.bases import Block
from visattn.blocks.branches.selective_kernels import SelectiveKernel
from visattn.blocks.branches.split_attentions import SplitAttention
from visattn.blocks.cards import Card, Kind
from visattn.blocks.channel.effective_excitations import EffectiveExcitation
from visattn.blocks.channel.efficient_gates import EfficientChannelGate
from visattn.blocks.channel.gated_transformations import GatedChannelTransformation
from visattn.blocks.channel.global_contexts import GlobalContext
from visattn.blocks.channel.squeeze_excitations import SqueezeExcitation
from visattn.blocks.channel.style_recalibrations import StyleRecalibration
from visattn.blocks.combined.bottleneck_attentions import BottleneckAttentionModule
from visattn.blocks.combined.convolutional_attentions import ConvolutionalAttention
from visattn.blocks.combined.coordinate_attentions import CoordinateAttention
from visattn.blocks.combined.dual_excitations import DualExcitation
from visattn.blocks.combined.energies import EnergyAttention
from visattn.blocks.combined.triplet_attentions import TripletAttention
from visattn.blocks.grids.bottleneck_heads import BottleneckHeads
from visattn.blocks.grids.criss_crosses import CrissCrossAttention
from visattn.blocks.grids.double_attentions import DoubleAttention
from visattn.blocks.grids.dual_attentions import DualAttention
from visattn.blocks.grids.nonlocals import NonLocal
from visattn.blocks.spatial.pooled_gates import SpatialGate
from visattn.blocks.spatial.signal_gates import AttentionGate
from visattn.blocks.spatial.spatial_excitations import SpatialExcitation
from visattn.blocks.spatial.spatial_transformers import SpatialTransformer

BLOCKS: dict[str, type[Block]] = {
    block.card.name: block
    for block in (
        SqueezeExcitation,
        EffectiveExcitation,
        EfficientChannelGate,
        StyleRecalibration,
        GatedChannelTransformation,
        GlobalContext,
        SpatialGate,
        SpatialExcitation,
        AttentionGate,
        SpatialTransformer,
        ConvolutionalAttention,
        BottleneckAttentionModule,
        DualExcitation,
        CoordinateAttention,
        TripletAttention,
        EnergyAttention,
        SelectiveKernel,
        SplitAttention,
        NonLocal,
        DualAttention,
        CrissCrossAttention,
        DoubleAttention,
        BottleneckHeads,
    )
}


def create(name: str, channels: int, **options: Any) -> Block:
    """Return a block by its name in the catalogue.

    Args:
        name: One of `names()`.
        channels: Width of the features that it is to take.
        options: What the block takes besides, as `reduction` or `kernel`.

    Raises:
        ValueError: If there is no such block, or if it takes no such option.

    Example:
        >>> import torch
        >>> create("se", 32, reduction=8)(torch.zeros(1, 32, 5, 7)).shape
        torch.Size([1, 32, 5, 7])
    """
    block = _found(name)
    known = [key for key in inspect.signature(block).parameters if key != "channels"]
    if wrong := sorted(set(options) - set(known)):
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
    return [name for name, block in BLOCKS.items() if kind in (None, block.card.kind)]


def info(name: str) -> Card:
    """Return the card of a block: paper, equation, parameters, and where we deviate.

    Raises:
        ValueError: If there is no such block.

    Example:
        >>> info("se").equation
        'y = x * s(W2 relu(W1 mean(x) + b1) + b2)'
    """
    return _found(name).card


def _found(name: str) -> type[Block]:
    if name not in BLOCKS:
        close = difflib.get_close_matches(name.lower(), BLOCKS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(BLOCKS)}"
        raise ValueError(f"there is no block {name!r}; {hint}")
    return BLOCKS[name]
