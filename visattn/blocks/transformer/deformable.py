"""Deformable cross-attention: each query samples a feature map at a few learned points."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32


def deformable_attention(
    values: Float[Tensor, "b h d y x"],
    locations: Float[Tensor, "b n h p 2"],
    weights: Float[Tensor, "b n h p"],
) -> tuple[Float[Tensor, "b n h d"], Float[Tensor, "b n h p"]]:
    """Return, for each query and head, the weighted sum of the values at p points.

    Values between cell centers are interpolated bilinearly; outside of the grid they are 0.

    Args:
        locations: x and y of each point, relative to the grid: 0 and 1 are its outer edges.
        weights: Weight of each point, which usually sum to 1.

    Returns:
        The output, and the weights.

    Example:
        >>> values = torch.tensor([2.0, 4.0]).view(1, 1, 1, 1, 2)
        >>> points = torch.tensor([[0.25, 0.5], [0.5, 0.5]]).view(1, 1, 1, 2, 2)
        >>> deformable_attention(values, points, torch.full((1, 1, 1, 2), 0.5))[0]
        tensor([[[[2.5000]]]])

    Source:
        Zhu et al. 2020, arXiv:2010.04159, equation 2, without its linear projections.
    """
    # Every second size of [b, n, h, p] from the second on: n and p.
    batch, heads, dim = values.shape[:3]
    queries, points = weights.shape[1::2]
    grid = 2 * locations.transpose(1, 2).flatten(0, 1) - 1
    sampled = grid_sample(
        at_least_float32(values.flatten(0, 1)), at_least_float32(grid), align_corners=False
    ).view(batch, heads, dim, queries, points)
    return torch.einsum("bhdnp,bnhp->bnhd", sampled, weights.to(sampled)).to(values), weights


def deformable_splat(
    locations: Float[Tensor, "b n h p 2"],
    weights: Float[Tensor, "b n h p"],
    grid: tuple[int, int],
) -> Float[Tensor, "b h n y x"]:
    """Return the weight of each grid cell in the output of `deformable_attention`.

    It is the derivative of the output with respect to the values: the sum of splat times values
    over the grid is the output. It sums to the weights of the points, less what they sample
    outside of the grid.

    Example:
        >>> point = torch.tensor([0.5, 0.5]).view(1, 1, 1, 1, 2)
        >>> deformable_splat(point, torch.ones(1, 1, 1, 1), (1, 4))[0, 0, 0]
        tensor([[0.0000, 0.5000, 0.5000, 0.0000]])
    """
    rows, columns = grid
    # Under autocast the types differ, and 16 bits round the place of a point.
    dtype = weights.dtype
    locations, weights = at_least_float32(locations), at_least_float32(weights)
    pixels = locations * locations.new_tensor([columns, rows]) - 0.5
    lower = pixels.floor()
    high_x, high_y = (pixels - lower).unbind(-1)
    splat: Tensor = weights.new_zeros(*weights.shape[:-1], rows * columns)
    # The four cells around a point share its weight, as bilinear sampling reads them. A cell
    # outside of the grid gets none, for `grid_sample` reads 0 there; the clamp only makes its index
    # valid.
    for down, share_y in ((0, 1 - high_y), (1, high_y)):
        for right, share_x in ((0, 1 - high_x), (1, high_x)):
            x = lower[..., 0] + right
            y = lower[..., 1] + down
            inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
            share = weights * share_x * share_y * inside
            cells = y.clamp(0, rows - 1) * columns + x.clamp(0, columns - 1)
            splat = splat.scatter_add(-1, cells.long(), share.to(splat))
    per_query = splat.to(dtype).transpose(1, 2)
    return per_query.reshape(*per_query.shape[:-1], *grid)


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
        self.num_heads = num_heads
        self.num_points = num_points
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
        center = boxes[:, :, None, None, :2]
        size = boxes[:, :, None, None, 2:]
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
