"""Object queries of DETR: learned anchors, proposals of the first stage, and denoising queries."""

from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from visattn.functional.boxes import inverse_sigmoid
from visattn.models.detection.decoder import cell_centers
from visattn.results.kinds import NO_OBJECT

_ANCHOR_SIZE = 0.3  # of the image side


class ObjectQueries(NamedTuple):
    """Queries at the start of the decoder."""

    content: Float[Tensor, "b n c"]
    boxes: Float[Tensor, "b n 4"]
    """Anchors: center x, center y, width, height, relative to the image."""
    mask: Bool[Tensor, "b n n"] | None = None
    """True = may attend; None if all may."""

    def append(self, other: Self) -> Self:
        """Return these queries and others, which they do not see; the others see these."""
        (batch, count), extra = self.content.shape[:2], other.content.shape[1]
        mask = self.content.new_ones(batch, count + extra, count + extra, dtype=torch.bool)
        mask[:, :count, count:] = False
        if other.mask is not None:
            mask[:, count:, count:] = other.mask
        return self._replace(
            content=torch.cat((self.content, other.content), 1),
            boxes=torch.cat((self.boxes, other.boxes), 1),
            mask=mask,
        )


class DenoisingQueries(nn.Module):
    """Denoising training: noised copies of the true boxes, which the decoder shall restore.

    Each group holds one copy of every object. A copy sees the copies of its group and the object
    queries, and neither other groups nor padding. The object queries see no copy, so that training
    and evaluation agree.

    Args:
        num_classes: Number of classes.
        dim: Dimension of the queries.
        num_groups: Number of groups.
        box_noise: Largest shift of the center, as a fraction of half the side, and largest relative
            change of a side.
        label_noise: Probability that the label of a copy is replaced by a random one.

    Example:
        >>> denoising = DenoisingQueries(3, 8, num_groups=2)
        >>> queries = denoising(torch.tensor([[1, -1]]), torch.full((1, 2, 4), 0.5))
        >>> queries.content.shape, queries.mask[0].int()
        (torch.Size([1, 4, 8]), tensor([[1, 0, 0, 0],
                [1, 0, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 0]], dtype=torch.int32))

    Source:
        Li et al. 2022, arXiv:2203.01305 (DN-DETR), sections 3.3 to 3.5.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        num_groups: int = 3,
        box_noise: float = 0.4,
        label_noise: float = 0.2,
    ) -> None:
        super().__init__()
        self.num_groups, self.box_noise, self.label_noise = num_groups, box_noise, label_noise
        self.labels = nn.Embedding(num_classes, dim)

    def forward(self, labels: Int[Tensor, "b m"], boxes: Float[Tensor, "b m 4"]) -> ObjectQueries:
        """Return the queries of all groups, one group after the other.

        Args:
            labels: True classes; `NO_OBJECT` for padding.
            boxes: True boxes: center x, center y, width, height, relative to the image.
        """
        groups, count = self.num_groups, labels.shape[1]
        labels, boxes = labels.repeat(1, groups), boxes.repeat(1, groups, 1)
        real = labels != NO_OBJECT
        group = torch.arange(groups, device=labels.device).repeat_interleave(count)
        mask = (group[:, None] == group) & real[:, None]
        return ObjectQueries(self._noised_labels(labels), self._noised_boxes(boxes), mask)

    def _noised_labels(self, labels: Int[Tensor, "b q"]) -> Float[Tensor, "b q c"]:
        flipped = torch.rand(labels.shape, device=labels.device) < self.label_noise
        random = torch.randint_like(labels, self.labels.num_embeddings)
        return self.labels(labels.where(~flipped, random).clamp(min=0))

    def _noised_boxes(self, boxes: Float[Tensor, "b q 4"]) -> Float[Tensor, "b q 4"]:
        center, size = boxes.split(2, -1)
        shift, scale = (self.box_noise * (2 * torch.rand_like(boxes) - 1)).split(2, -1)
        return torch.cat((center + shift * size / 2, size * (1 + scale)), -1).clamp(0, 1)


def spread_anchors(count: int) -> Float[Tensor, "n 4"]:
    """Return anchors of equal size whose centers cover the image evenly, before the sigmoid.

    Example:
        >>> spread_anchors(2).sigmoid()
        tensor([[0.7549, 0.5698, 0.3000, 0.3000],
                [0.5098, 0.1397, 0.3000, 0.3000]])

    Source:
        The R2 sequence: Roberts 2018, "The unreasonable effectiveness of quasirandom sequences".
    """
    steps = torch.arange(1, count + 1, dtype=torch.float64)[:, None]
    centers = (steps * torch.tensor([0.7548776662466927, 0.5698402909980532])) % 1
    anchors = torch.cat((centers, torch.full((count, 2), _ANCHOR_SIZE)), -1)
    return inverse_sigmoid(anchors.float())


def cell_anchors(grid: tuple[int, int], *, like: Tensor) -> Float[Tensor, "m 4"]:
    """Return an anchor at the center of each cell, before the sigmoid.

    Example:
        >>> cell_anchors((1, 2), like=torch.zeros(1)).sigmoid()
        tensor([[0.2500, 0.5000, 0.3000, 0.3000],
                [0.7500, 0.5000, 0.3000, 0.3000]])
    """
    centers = cell_centers(grid, like=like)
    return inverse_sigmoid(torch.cat((centers, torch.full_like(centers, _ANCHOR_SIZE)), -1))
