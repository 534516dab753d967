"""Controls of word maps: selected layers and heads, relative attention, removed sinks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

_SINK = 4.0  # times the mean weight of an image token, in every word


@dataclass(frozen=True)
class Controls:
    """How rows of words are selected and corrected; by default they are untouched.

    Args:
        layers: Indices of the layers whose mean is taken; None for all. Negative ones count from
            the end.
        heads: Indices of the heads whose mean is taken; None for all.
        relative: Divide the row of each word by the mean row of the other words.
        without_sinks: Remove image tokens that draw weight for every word.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    relative: bool = False
    without_sinks: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the controls as plain values."""
        return {
            "layers": "mean" if self.layers is None else list(self.layers),
            "heads": "mean" if self.heads is None else list(self.heads),
            "relative": self.relative,
            "without_sinks": self.without_sinks,
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


def find_sinks(rows: Float[Tensor, "t i"], *, threshold: float = _SINK) -> list[int]:
    """Return the image tokens that draw much more weight than the mean token in every word.

    Raises:
        ValueError: If there is one word only.

    Example:
        >>> find_sinks(torch.tensor([[9.0, 1, 1, 1, 1, 1], [9.0, 8, 1, 1, 1, 1]]), threshold=2)
        [0]

    Source:
        Kang et al. 2025, arXiv:2503.03321, find sinks by their massive activations; here by the
        weight that they draw for any word.
    """
    if len(rows) < 2:
        raise ValueError("sinks draw weight for every word: the caption must have at least 2")
    strong = rows > threshold * rows.mean(1, keepdim=True)
    return strong.all(0).nonzero()[:, 0].tolist()
