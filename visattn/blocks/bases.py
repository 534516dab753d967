"""What all blocks for CNNs have in common."""

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.cards import Card


class Block(nn.Module, ABC):
    """Attention that takes a grid of features and gives one of the same shape, whatever its size.

    Args:
        channels: Width of a feature.

    Example:
        >>> import torch
        >>> class Halved(Block):
        ...     def attend(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    card: ClassVar[Card]
    """Paper, equation, and where we deviate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features under attention.

        Raises:
            ValueError: If they are not of the width that the block is made for.
        """
        self._check(x)
        return self.attend(x)

    @abstractmethod
    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features under attention; their width is right."""

    def _check(self, x: Float[Tensor, "b c y x"]) -> None:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__} takes [batch, {self.channels}, height, width], "
                f"got {list(x.shape)}; say channels={x.shape[1]} when it is made, or permute "
                "channels-last features"
                if x.ndim == 4
                else f"{type(self).__name__} takes four axes, got {list(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"{self.channels}"


def hidden_width(channels: int, reduction: int, *, least: int = 1) -> int:
    """Return the width of a bottleneck, which never falls below `least`.

    Raises:
        ValueError: If channels or reduction are below 1.

    Example:
        >>> hidden_width(256, 16), hidden_width(8, 16)
        (16, 1)
    """
    if channels < 1 or reduction < 1:
        raise ValueError(
            f"channels and reduction must be at least 1, got {channels} and {reduction}"
        )
    return max(least, channels // reduction)
