"""Layout of the tokens of an image: prefix tokens, grid and dropped patches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor


class TokenLayout(NamedTuple):
    """Layout of tokens: prefix tokens by role, then the patch tokens of a grid in row-major order.

    Example:
        >>> TokenLayout((2, 3), ("class",)).num_tokens
        7
    """

    grid: tuple[int, int]
    """Height and width of the grid."""
    roles: tuple[str, ...] = ()
    """Roles of the prefix tokens: `class`, `distillation`, `register`."""
    keep_indices: Int[Tensor, "b m"] | None = None
    """Indices of the kept patch tokens of each image; None if all are kept."""
    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of the rotary position embedding, `[#b, 1, n, d / 2]`."""
    notes: Mapping[str, Any] = {}
    """Metadata of the tokens, in plain values; copied to recorded maps."""

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patch tokens."""
        return len(self.roles)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, including dropped ones."""
        return len(self.roles) + self.grid[0] * self.grid[1]

    def check_differentiable(self, *, differentiable: bool) -> None:
        """Raise if weights must be differentiable but patches were dropped.

        Raises:
            ValueError: If both are the case.
        """
        if differentiable and self.keep_indices is not None:
            raise ValueError(
                "gradients with respect to attention weights need all patch tokens, but some were "
                "dropped: call model.eval(), or set the patch dropout rate to 0"
            )
