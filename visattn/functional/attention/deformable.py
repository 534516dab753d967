"""Deformable attention: weighted sums of features at sampled points, and their splat."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import grid_sample

from visattn.functional.numerics import at_least_float32


def deformable_attention(
    values: Float[Tensor, "b h d y x"],
    locations: Float[Tensor, "b n h p 2"],
    weights: Float[Tensor, "b n h p"],
) -> tuple[Float[Tensor, "b n h d"], Float[Tensor, "b n h p"]]:
    """Return, for each query and head, the weighted sum of the values at p points.

    Values between cell centers are interpolated bilinearly; outside of the grid they are 0.

    Args:
        values: Values of each head on a grid.
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
    (batch, heads, dim), (queries, points) = values.shape[:3], weights.shape[1::2]
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

    Args:
        locations: x and y of each point, relative to the grid.
        weights: Weight of each point.
        grid: Height and width of the grid.

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
    for down, share_y in ((0, 1 - high_y), (1, high_y)):
        for right, share_x in ((0, 1 - high_x), (1, high_x)):
            x, y = lower[..., 0] + right, lower[..., 1] + down
            inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
            share = weights * share_x * share_y * inside
            cells = y.clamp(0, rows - 1) * columns + x.clamp(0, columns - 1)
            splat = splat.scatter_add(-1, cells.long(), share.to(splat))
    per_query = splat.to(dtype).transpose(1, 2)
    return per_query.reshape(*per_query.shape[:-1], *grid)
