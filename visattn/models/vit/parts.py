"""Positions of a Vision Transformer, for the grid at hand and the tokens before it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import check_choice
from visattn.blocks.transformer.attention import Kind, TokenAttention
from visattn.blocks.transformer.layer import EncoderLayer
from visattn.blocks.transformer.mlp import FeedForward, SwiGLU
from visattn.blocks.transformer.pooling import AttentionPool, SequencePool
from visattn.blocks.transformer.stems import (
    ConvStem,
    ConvTokenizer,
    PatchEmbedding,
    ShiftedPatchEmbedding,
)
from visattn.functional.positions.rotary import grid_rotations
from visattn.functional.positions.sincos import Rule, resampled_positions


def learned_places(
    learned: Float[Tensor, "1 n c"],
    native: tuple[int, int],
    grid: tuple[int, int],
    *,
    rule: Rule,
) -> tuple[Float[Tensor, "1 p c"], Float[Tensor, "1 m c"]]:
    """Return what is added to the tokens before the grid, and to those of its cells.

    Args:
        learned: Positions of the tokens before the grid, if they have any, and of the cells.
        native: Height and width of the grid that they were learnt on.
        grid: Of that which they are wanted for.
        rule: How to resample them.

    Example:
        >>> always, cells = learned_places(torch.ones(1, 5, 3), (2, 2), (2, 3), rule="timm")
        >>> always.shape, cells.shape
        (torch.Size([1, 1, 3]), torch.Size([1, 6, 3]))
    """
    before = learned.shape[1] - native[0] * native[1]
    always, cells = learned[:, :before], learned[:, before:]
    # An exported graph is for all sizes, and so must not ask whether this is the native one.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if exporting() or grid != native:
        cells = resampled_positions(cells[0], native, grid, rule=rule).unsqueeze(0)
    return always, cells


def token_rotations(
    grid: tuple[int, int], width: int, *, before: int, device: torch.device | None = None
) -> tuple[Float[Tensor, "1 1 n d"], Float[Tensor, "1 1 n d"]]:
    """Return cosines and sines by which tokens are turned; those before the grid stay as they are.

    Args:
        grid: Height and width of the grid.
        width: Of a head.
        before: Tokens before the grid.
        device: Where the numbers are needed.

    Raises:
        ValueError: If four does not divide the width of a head.

    Example:
        >>> cosines, sines = token_rotations((1, 2), 4, before=1)
        >>> cosines[0, 0, 0], sines[0, 0, :, 1]
        (tensor([1., 1.]), tensor([0.0000, 0.0000, 0.8415]))
    """
    cosines, sines = grid_rotations(grid, width, device=device)
    still = (before, width // 2)
    cosines = torch.cat((cosines.new_ones(still), cosines))
    return cosines[None, None], torch.cat((sines.new_zeros(still), sines))[None, None]


def whole_size(height: int, width: int, *, patch: tuple[int, int], pad: bool) -> tuple[int, int]:
    """Return the size of images in whole patches.

    Args:
        height: Of the images.
        width: Of the images.
        patch: Height and width of a patch.
        pad: Whether images may be filled up.

    Raises:
        ValueError: If patches do not fill the images, and these may not be filled up.

    Example:
        >>> whole_size(30, 32, patch=(16, 16), pad=True)
        (32, 32)
    """
    down, across = patch
    if pad:
        return -(-height // down) * down, -(-width // across) * across
    if height % down or width % across:
        raise ValueError(
            f"patches of {down} x {across} do not fill images of {height} x {width}; say "
            "pad=True to have these filled up, or bring them to a multiple"
        )
    return height, width


Stem = Literal["patch", "conv", "shifted", "overlapping"]
StemLayer = PatchEmbedding | ConvStem | ShiftedPatchEmbedding | ConvTokenizer
Pool = Literal["class", "mean", "attention", "sequence"]
Positions = Literal["learned", "sine", "rotary", "relative", "none"]
Forward = Literal["mlp", "swiglu"]

_STEMS: dict[str, Any] = {
    "patch": PatchEmbedding,
    "conv": ConvStem,
    "shifted": ShiftedPatchEmbedding,
    "overlapping": ConvTokenizer,
}
_MOST_REGISTERS = 8


def stem_layer(
    stem: Stem,
    channels: int,
    width: int,
    *,
    patch: tuple[int, int],
    options: Mapping[str, Any] | None = None,
) -> StemLayer:
    """Return what makes tokens of images.

    Raises:
        ValueError: If the stem is unknown, or it does not take the patch or an option.
    """
    check_choice("stem", stem, get_args(Stem))
    if min(patch) < 1 or min(channels, width) < 1:
        raise ValueError(
            f"patch, channels and width must be at least 1, got {patch}, {channels} and {width}"
        )
    shaped = {} if stem == "overlapping" else {"patch": patch}
    try:
        return _STEMS[stem](channels, width, **shaped, **(options or {}))
    except TypeError as error:
        raise ValueError(f"the stem {stem!r} does not take these options: {error}") from error


def attention_kinds(attend: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """Return the kind of each layer: the given ones, gone through again until all have one.

    Raises:
        ValueError: If a kind is unknown, or there are none or more than layers.
    """
    given = (attend,) if isinstance(attend, str) else tuple(attend)
    for kind in given:
        check_choice("attend", kind, get_args(Kind))
    if not 1 <= len(given) <= depth:
        raise ValueError(
            f"attend needs from 1 to {depth} kinds, no more than there are layers, got {len(given)}"
        )
    return tuple(given[number % len(given)] for number in range(depth))


def encoder_layers(
    kinds: Sequence[str],
    width: int,
    *,
    heads: int,
    hidden: int,
    grid: tuple[int, int],
    extent: tuple[int, int],
    relative: bool,
    feed_forward: Forward,
    drop_path: float,
    layer_scale: float | None,
    epsilon: float,
    **options: bool,
) -> nn.ModuleList:
    """Return the layers of a transformer; paths are dropped more often from layer to layer.

    Raises:
        ValueError: If an option is unknown or does not fit the others.
    """
    check_choice("feed_forward", feed_forward, get_args(Forward))
    forward = FeedForward if feed_forward == "mlp" else SwiGLU
    layers = nn.ModuleList()
    for number, kind in enumerate(kinds):
        farthest = grid if kind == "full" else extent
        attention = TokenAttention(
            width,
            heads=heads,
            kind=kind,  # pyright: ignore[reportArgumentType]
            extent=extent,
            reach=(farthest[0] - 1, farthest[1] - 1) if relative else None,
            epsilon=epsilon,
            **options,
        )
        layer = EncoderLayer(
            width,
            attention,
            forward(width, hidden),
            layer_scale=layer_scale,
            drop_path=drop_path * number / max(1, len(kinds) - 1),
            epsilon=epsilon,
        )
        layers.append(layer)
    return layers


def pool_layer(
    pool: Pool, width: int, *, heads: int, hidden: int, epsilon: float
) -> AttentionPool | SequencePool | None:
    """Return what makes one vector of the tokens, where weights are needed for that.

    Raises:
        ValueError: If the pool is unknown.
    """
    check_choice("pool", pool, get_args(Pool))
    if pool == "attention":
        return AttentionPool(width, heads=heads, hidden=hidden, epsilon=epsilon)
    return SequencePool(width) if pool == "sequence" else None


def prefix_roles(
    pool: Pool, class_token: bool | None, *, distilled: bool, registers: int
) -> tuple[str, ...]:
    """Return the roles of the tokens before the grid, in their order.

    Raises:
        ValueError: If a token is missing that the pool reads, or there are too many registers.
    """
    has_class = pool == "class" if class_token is None else class_token
    if pool == "class" and not has_class:
        raise ValueError("pool='class' reads the class token: leave class_token as it is, or True")
    if distilled and pool != "class":
        raise ValueError(
            f"the distillation token is read beside the class token: it needs pool='class', not "
            f"{pool!r}"
        )
    if not 0 <= registers <= _MOST_REGISTERS:
        raise ValueError(f"there can be from 0 to {_MOST_REGISTERS} registers, got {registers}")
    return ("class",) * has_class + ("distillation",) * distilled + ("register",) * registers


def check_positions(positions: Positions, kinds: Sequence[str], patch_drop: float) -> None:
    """Let positions pass that all layers can take, with the patches that are left.

    Raises:
        ValueError: If they are unknown, or patches are dropped where a layer needs the whole grid.
    """
    check_choice("positions", positions, get_args(Positions))
    local = sorted({"window", "shifted", "neighborhood"} & set(kinds))
    if patch_drop and (local or positions == "relative"):
        needs = f"attend={local[0]!r}" if local else "positions='relative'"
        raise ValueError(
            f"patch_drop leaves holes in the grid, and {needs} needs it whole: drop one of the two"
        )


def both(size: int | Sequence[int], option: str) -> tuple[int, int]:
    """Return height and width, of which one number gives both.

    Raises:
        ValueError: If there are not two, or they are below 1.

    Example:
        >>> both(3, "patch"), both([2, 4], "patch")
        ((3, 3), (2, 4))
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"{option} must be a height and a width of at least 1, got {size}")
    return int(sides[0]), int(sides[1])
