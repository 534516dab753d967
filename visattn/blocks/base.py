"""Base class and metadata of the attention blocks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value is one of the choices.

    Raises:
        ValueError: If the value is not one of the choices.

    Example:
        >>> check_choice("combine", "add", ("add", "mul"))
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


BlockKind = Literal["channel", "spatial", "combined", "branch", "self_attention", "other"]


@dataclass(frozen=True)
class BlockInfo:
    """Metadata of a block.

    Args:
        name: Name in the registry.
        kind: What the attention weights: each `channel`, each position (`spatial`), both
            (`combined`), the `branch` outputs of several convolutions, or pairs of positions
            (`self_attention`); `other` for a registered block without metadata.
        paper: Authors, year and reference.
    """

    name: str
    kind: BlockKind
    paper: str


class Block(nn.Module):
    """Base class of attention blocks: features in, features of the same shape out, for any size.

    The first argument of a block is the number of channels. Its attention weights pass through a
    `Tap`, where they can be recorded.

    Example:
        >>> class Halved(Block):
        ...     info = BlockInfo("halved", "other", "unpublished")
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    info: ClassVar[BlockInfo]
