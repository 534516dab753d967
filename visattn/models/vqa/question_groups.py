"""Questions beside the other questions about their image, so that images are not copied."""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class QuestionGroups:
    """Places of r questions in an array `b m` of at most m questions about each of b images.

    Attention of questions to images is then one batched product per image, and keys and values are
    computed once per image.

    Args:
        index: Place of each question in the flattened array; None if the questions are in order and
            equally many for each image.
        shape: Number of images and the most questions about one image.

    Example:
        >>> groups = QuestionGroups.from_indices(torch.tensor([1, 0, 1]), 2)
        >>> groups.by_image(torch.tensor([[5.0], [6.0], [7.0]])).squeeze(-1)
        tensor([[6., 0.],
                [5., 7.]])
    """

    index: Int[Tensor, " r"] | None
    shape: tuple[int, int]

    @classmethod
    def from_indices(cls, image_indices: Int[Tensor, " r"] | None, num_images: int) -> Self:
        """Create it from the index of the image of each question; None: one question each."""
        if image_indices is None:
            return cls(None, (num_images, 1))
        per_image = max(1, len(image_indices) // num_images)
        images = torch.arange(num_images, device=image_indices.device)
        if torch.equal(images.repeat_interleave(per_image), image_indices):
            return cls(None, (num_images, per_image))
        counts = image_indices.bincount(minlength=num_images)
        order = image_indices.argsort(stable=True)
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[image_indices[order]]
        most = int(counts.max())
        return cls(image_indices * most + rank, (num_images, most))

    def by_image(self, rows: Float[Tensor, "r ..."]) -> Float[Tensor, "b m ..."]:
        """Return the rows of the questions by image; places without a question are 0."""
        if self.index is None:
            return rows.unflatten(0, self.shape)
        padded = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        return padded.index_copy(0, self.index, rows).unflatten(0, self.shape)

    def by_question(self, rows: Float[Tensor, "b m ..."]) -> Float[Tensor, "r ..."]:
        """Return the rows of the questions in their order."""
        flat = rows.flatten(0, 1)
        return flat if self.index is None else flat.index_select(0, self.index)
