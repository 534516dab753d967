"""Base class of the attention blocks, and what they state of themselves."""

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
    """What a block states of itself beside its docstring.

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

    The first argument of a block is its number of channels, its `forward` is the equation, and the
    weights that a recorder may see pass through a `Tap`.

    Example:
        >>> class Halved(Block):
        ...     info = BlockInfo("halved", "other", "Nobody 2024")
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    info: ClassVar[BlockInfo]
