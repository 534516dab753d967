"""All blocks by name."""

import difflib
import inspect
from typing import Any, get_args

from visattn.blocks.bases import Block
from visattn.blocks.cards import Card, Kind
from visattn.blocks.channel.squeeze_excitations import SqueezeExcitation

BLOCKS: dict[str, type[Block]] = {block.card.name: block for block in (SqueezeExcitation,)}


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
