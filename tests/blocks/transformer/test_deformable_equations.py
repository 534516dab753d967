"""Deformable attention by loops, and its splat as the derivative of the output."""

import math

import torch
from torch import Tensor

from visattn.blocks.transformer.deformable import deformable_attention, deformable_splat


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    values = torch.randn(2, 3, 5, 7, 11, generator=random, dtype=torch.float64)
    locations = 1.6 * torch.rand(2, 13, 3, 4, 2, generator=random, dtype=torch.float64) - 0.3
    weights = torch.randn(2, 13, 3, 4, generator=random, dtype=torch.float64).softmax(-1)
    return values, locations, weights


def sample(grid: Tensor, x: float, y: float) -> Tensor:
    """Return the bilinear value of a grid [d, y, x] whose first cell spans 0 to 1."""
    total = torch.zeros(grid.shape[0], dtype=grid.dtype)
    left, top = math.floor(x - 0.5), math.floor(y - 0.5)
    for row in (top, top + 1):
        for column in (left, left + 1):
            if 0 <= row < grid.shape[1] and 0 <= column < grid.shape[2]:
                share = (1 - abs(y - 0.5 - row)) * (1 - abs(x - 0.5 - column))
                total += share * grid[:, row, column]
    return total


def test_output_is_the_weighted_sum_of_the_samples() -> None:
    values, locations, weights = inputs()
    output, returned = deformable_attention(values, locations, weights)
    assert returned is weights
    for b, n, h in ((0, 0, 0), (1, 12, 2), (0, 5, 1)):
        expected = sum(
            weight * sample(values[b, h], 11 * float(x), 7 * float(y))
            for (x, y), weight in zip(locations[b, n, h], weights[b, n, h], strict=True)
        )
        torch.testing.assert_close(output[b, n, h], expected)


def test_splat_times_values_is_the_output() -> None:
    values, locations, weights = inputs()
    splat = deformable_splat(locations, weights, (7, 11))
    product = torch.einsum("bhnyx,bhdyx->bnhd", splat, values)
    torch.testing.assert_close(product, deformable_attention(values, locations, weights)[0])
    single = deformable_attention(values.float(), locations.float(), weights.float())[0]
    product = torch.einsum(
        "bhnyx,bhdyx->bnhd",
        deformable_splat(locations.float(), weights.float(), (7, 11)),
        values.float(),
    )
    assert float((product - single).abs().max() / single.abs().max()) < 2e-6


def test_splat_is_the_derivative_by_the_values() -> None:
    values, locations, weights = inputs()
    values = values[:, :, :1].requires_grad_()
    output, _ = deformable_attention(values, locations, weights)
    splat = deformable_splat(locations, weights, (7, 11))
    for n in (0, 7):
        [gradient] = torch.autograd.grad(output[:, n].sum(), values, retain_graph=True)
        torch.testing.assert_close(splat[:, :, n], gradient[:, :, 0])


def test_what_is_sampled_outside_is_missing_from_the_splat() -> None:
    points = torch.tensor([[0.5, 0.5], [3.0, 0.5], [1.0, 0.5]]).view(1, 1, 1, 3, 2)
    splat = deformable_splat(points, torch.tensor([0.5, 0.3, 0.2]).view(1, 1, 1, 3), (1, 4))
    torch.testing.assert_close(splat.flatten(), torch.tensor([0.0, 0.25, 0.25, 0.1]))
