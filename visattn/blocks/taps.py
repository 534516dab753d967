"""The one place where an attention block's map can be seen."""

from collections.abc import Sized
from typing import Literal, cast

from jaxtyping import Float
from torch import Tensor, nn

MapKind = Literal["gate", "tokens", "words", "glimpse", "gradient", "channel"]


class Tap(nn.Module):
    """Pass attention weights through unchanged, so that a recorder can listen to them.

    A block that can also run without computing its weights asks `wanted` first.

    Args:
        kind: What the weights are: a `gate` per pixel, a row of `tokens`, one map per word, ...
        grid: Height and width of the grid that the last axis runs over, row by row; None when the
            weights already end in `y x`. A block whose grid changes sets it before each use.

    Example:
        >>> Tap("gate")(torch.tensor([0.25, 0.75]))
        tensor([0.2500, 0.7500])
    """

    def __init__(self, kind: MapKind, *, grid: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.kind: MapKind = kind
        self.grid = grid

    @property
    def wanted(self) -> bool:
        """Whether anybody is listening."""
        return len(cast("Sized", self._forward_hooks)) > 0

    def forward(self, weights: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the weights as they are."""
        return weights
