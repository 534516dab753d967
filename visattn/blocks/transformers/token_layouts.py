"""What the layers of a transformer know of the tokens that they are given."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor


class TokenLayout(NamedTuple):
    """Where tokens lie: first those of no place, by their roles, then those of the grid.

    Example:
        >>> TokenLayout((2, 3), ("class",)).tokens
        7
    """

    grid: tuple[int, int]
    """Height and width of the grid."""
    roles: tuple[str, ...] = ()
    """Of the tokens before the grid: `class`, `distillation`, `register`."""
    kept: Int[Tensor, "b m"] | None = None
    """Which tokens of the grid are there, for each picture; None for all."""
    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines by which queries and keys are turned, `[#b, 1, n, d / 2]`."""
    notes: Mapping[str, Any] = {}
    """How the tokens were made, in plain values; maps carry it on."""

    @property
    def before(self) -> int:
        """Tokens before the grid."""
        return len(self.roles)

    @property
    def tokens(self) -> int:
        """Tokens in all, those that were left out among them."""
        return len(self.roles) + self.grid[0] * self.grid[1]
