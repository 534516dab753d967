"""Controls of word maps: selected layers and heads, relative attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Controls:
    """How rows of words are selected and corrected; by default they are untouched.

    Args:
        layers: Indices of the layers whose mean is taken; None for all. Negative ones count from
            the end.
        heads: Indices of the heads whose mean is taken; None for all.
        relative: Divide the row of each word by the mean row of the other words.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    relative: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the controls as plain values."""
        return {
            "layers": "mean" if self.layers is None else list(self.layers),
            "heads": "mean" if self.heads is None else list(self.heads),
            "relative": self.relative,
        }


def select_indices(name: str, indices: Sequence[int] | None, count: int) -> list[int]:
    """Return indices of layers or heads, all of them for None; negative ones count from the end.

    Raises:
        ValueError: If an index does not exist, or none is given.
    """
    if indices is None:
        return list(range(count))
    if not len(indices) or not all(-count <= index < count for index in indices):
        raise ValueError(
            f"{name} must be indices from 0 to {count - 1} (or from the end, -1 to {-count}), "
            f"got {list(indices)}"
        )
    return [index % count for index in indices]


def relative_rows(rows: Float[Tensor, "t i"]) -> Float[Tensor, "t i"]:
    """Return each row divided by the mean of the other rows, with the sum that it had.

    Raises:
        ValueError: If there is one word only.

    Example:
        >>> relative_rows(torch.tensor([[0.4, 0.1], [0.4, 0.4]]))
        tensor([[0.4000, 0.1000],
                [0.1600, 0.6400]])

    Source:
        Zhang et al. 2025, arXiv:2502.17422, divide by the attention to a neutral prompt; here the
        other words take its place.
    """
    count = len(rows)
    if count < 2:
        raise ValueError("relative attention compares words: the caption must have at least 2")
    others = (rows.sum(0, keepdim=True) - rows) / (count - 1)
    ratio = rows / others.clamp(min=1e-12)
    return ratio * (rows.sum(1, keepdim=True) / ratio.sum(1, keepdim=True).clamp(min=1e-12))
