"""Deformable cross-attention: each query samples a feature map at a few learned points."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention.deformable import deformable_attention, deformable_splat


class SamplingPoints(NamedTuple):
    """Points that deformable attention sampled, for each query and head."""

    locations: Float[Tensor, "b n h p 2"]
    """x and y relative to the feature map: 0 and 1 are its outer edges; may lie outside."""
    weights: Float[Tensor, "b n h p"]
    """Weights, which sum to 1 over the points of a head."""


class DeformableAttention(nn.Module):
    """Multi-head deformable attention of queries with boxes over one feature map.

    Each head of a query samples `num_points` points. Their offsets from the center of the query's
    box are in units of half the box, divided by `num_points`, so that at first the points of a head
    lie on a ray from near the center to the edge of the box. Nothing depends on the number of
    cells, and no custom kernel is needed.

    The recorded map is the splat of the points: the weight of each cell in the output. Its sum
    falls below 1 by what the points sample outside of the map.

    Args:
        embed_dim: Dimension of queries and output.
        num_heads: Number of heads; it divides `embed_dim`.
        num_points: Points per head.
        kdim: Channels of the feature map; `embed_dim` if None.

    Raises:
        ValueError: If a number is below 1, or `num_heads` does not divide `embed_dim`.

    Example:
        >>> attention = DeformableAttention(8, num_heads=2, num_points=3)
        >>> boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4]]])
        >>> output, points = attention(torch.zeros(1, 1, 8), boxes, torch.zeros(1, 8, 5, 7))
        >>> output.shape, points.locations.shape
        (torch.Size([1, 1, 8]), torch.Size([1, 1, 2, 3, 2]))

    Source:
        Zhu et al. 2020, arXiv:2010.04159, equation 2 and appendix A.4 (offsets relative to boxes).
        Deviation: one feature level.
    """

    def __init__(
        self, embed_dim: int, *, num_heads: int = 8, num_points: int = 4, kdim: int | None = None
    ) -> None:
        super().__init__()
        if min(embed_dim, num_heads, num_points) < 1 or embed_dim % num_heads:
            raise ValueError(
                "num_heads must divide embed_dim, and all numbers be at least 1; got embed_dim="
                f"{embed_dim}, num_heads={num_heads}, num_points={num_points}"
            )
        self.num_heads, self.num_points = num_heads, num_points
        self.offsets = nn.Linear(embed_dim, num_heads * num_points * 2)
        self.weights = nn.Linear(embed_dim, num_heads * num_points)
        self.value = nn.Conv2d(embed_dim if kdim is None else kdim, embed_dim, 1)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.tap = Tap("queries")
        self._reset_parameters()

    def forward(
        self,
        query: Float[Tensor, "b n c"],
        boxes: Float[Tensor, "b n 4"],
        features: Float[Tensor, "b k y x"],
    ) -> tuple[Float[Tensor, "b n c"], SamplingPoints]:
        """Return the attention output and the sampled points.

        Args:
            query: Queries.
            boxes: Center x, center y, width and height of each, relative to the feature map.
            features: The feature map.
        """
        points = self._sampling_points(query, boxes)
        values = self.value(features).unflatten(1, (self.num_heads, -1))
        splat = self._record(points, (features.shape[2], features.shape[3]))
        if splat is not None and self.tap.differentiable:
            output = torch.einsum("bhnm,bhdm->bnhd", splat, values.flatten(3))
        else:
            output, _ = deformable_attention(values, *points)
        return self.out(output.flatten(2)), points

    def _sampling_points(
        self, query: Float[Tensor, "b n c"], boxes: Float[Tensor, "b n 4"]
    ) -> SamplingPoints:
        offsets = self.offsets(query).unflatten(-1, (self.num_heads, self.num_points, 2))
        weights = self.weights(query).unflatten(-1, (self.num_heads, self.num_points)).softmax(-1)
        center, size = boxes[:, :, None, None, :2], boxes[:, :, None, None, 2:]
        return SamplingPoints(center + offsets / self.num_points * size / 2, weights)

    def _record(
        self, points: SamplingPoints, grid: tuple[int, int]
    ) -> Float[Tensor, "b h n m"] | None:
        """Pass the splat through the tap if a recorder listens."""
        if not self.tap.wanted:
            return None
        splat = deformable_splat(*points, grid)
        self.tap.grid = grid
        return self.tap(splat.flatten(3))

    def _reset_parameters(self) -> None:
        """Start with points on rays, one direction per head, and equal weights."""
        angle = torch.arange(self.num_heads) * (2 * math.pi / self.num_heads)
        ray = torch.stack((angle.cos(), angle.sin()), -1)
        ray = ray / ray.abs().amax(-1, keepdim=True)  # on the edge of a square
        radii = torch.arange(1, self.num_points + 1)
        with torch.no_grad():
            self.offsets.bias.copy_((ray[:, None] * radii[:, None]).flatten())
        for zero in (self.offsets.weight, self.weights.weight, self.weights.bias, self.out.bias):
            nn.init.zeros_(zero)
        nn.init.xavier_uniform_(self.value.weight)
        nn.init.zeros_(self.value.bias)  # pyright: ignore[reportArgumentType]
        nn.init.xavier_uniform_(self.out.weight)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}, num_points={self.num_points}"
