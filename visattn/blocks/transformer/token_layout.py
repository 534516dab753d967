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
    """Which tokens of the grid are there, for each image; None for all."""
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

    def check_woven(self, *, woven: bool) -> None:
        """Let weights pass that a layer can compute with as they are shown.

        Raises:
            ValueError: If it is to do so and some of the tokens were left out.
        """
        if woven and self.kept is not None:
            raise ValueError(
                "weights that gradients are wanted of need all tokens of the grid, and some were "
                "left out: call model.eval(), or set patch_drop to 0"
            )
