"""Affine sampling against torch's grid, and the area of sampled regions."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from random_numbers import numbers
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from visattn.functional.sampling import affine_corners, affine_coverage, affine_sample, tent_pool

SIZE = (11, 17)
BOTH = pytest.mark.parametrize("align_corners", [False, True])


def poses(count: int = 3, *, size: float = 0.3, seed: int = 0) -> Tensor:
    return torch.eye(2, 3, dtype=torch.float64) * 0.5 + size * numbers(count, 2, 3, seed=seed)


@BOTH
def test_affine_grid_matches_torch(align_corners: bool) -> None:
    x, pose = numbers(3, 2, *SIZE), poses()
    grid = affine_grid(pose, [3, 2, *SIZE], align_corners=align_corners)
    expected = grid_sample(x, grid, align_corners=align_corners)
    torch.testing.assert_close(affine_sample(x, pose, align_corners=align_corners), expected)


@BOTH
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_sampled_in_float32(align_corners: bool, kind: torch.dtype) -> None:
    x, pose = torch.randn(3, 2, 101, 211), poses().to(kind)
    view = affine_sample(x.to(kind), pose, align_corners=align_corners)
    full = affine_sample(x.to(kind).float(), pose.float(), align_corners=align_corners)
    assert view.dtype == kind
    torch.testing.assert_close(view.float(), full, rtol=torch.finfo(kind).eps, atol=1e-6)


@BOTH
@given(seed=st.integers(0, 99))
@settings(max_examples=10)
def test_corners_match_the_sampled_grid(align_corners: bool, seed: int) -> None:
    """On a ramp the samples are coordinates; the border is half a step outside."""
    height, width = SIZE
    pose = poses(1, size=0.1, seed=seed)
    rows = torch.arange(height, dtype=torch.float64).add(0.5)[:, None].expand(SIZE)
    columns = torch.arange(width, dtype=torch.float64).add(0.5).expand(SIZE)
    ramp = torch.stack((columns, rows))[None]
    sampled = affine_sample(ramp, pose * 0.7, align_corners=align_corners)[0]
    down, across = (
        (sampled[:, 1, 0] - sampled[:, 0, 0]) / 2,
        (sampled[:, 0, 1] - sampled[:, 0, 0]) / 2,
    )
    expected = torch.stack(
        (
            sampled[:, 0, 0] - across - down,
            sampled[:, 0, -1] + across - down,
            sampled[:, -1, -1] + across + down,
            sampled[:, -1, 0] - across + down,
        )
    )
    [corners] = affine_corners(pose * 0.7, SIZE, align_corners=align_corners)
    torch.testing.assert_close(corners, expected, rtol=0, atol=1e-9)


@BOTH
@given(angle=st.floats(0, 2 * math.pi), seed=st.integers(0, 9))
@settings(max_examples=20)
def test_rotated_region_has_nearly_the_area_of_its_frame(
    align_corners: bool, angle: float, seed: int
) -> None:
    scale, turn = 0.4, torch.tensor([math.cos(angle), -math.sin(angle), 0.05])
    pose = scale * torch.stack((turn, torch.tensor([math.sin(angle), math.cos(angle), 0.1])))[None]
    corners = affine_corners(pose, (41, 59), align_corners=align_corners)[0]
    x, y = corners.unbind(-1)
    area = float((x * y.roll(-1) - y * x.roll(-1)).sum() / 2)
    region = affine_coverage(pose, (41, 59), align_corners=align_corners)
    assert float(region.sum()) == pytest.approx(area, rel=0.02)


def test_degenerate_pose_has_an_empty_region() -> None:
    for pose in (torch.zeros(1, 2, 3), torch.tensor([[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])):
        assert not affine_coverage(pose, SIZE).any()


@pytest.mark.parametrize("size", [(5, 7), (13, 2), (1, 1)])
def test_coarse_pooling_is_a_tent_weighted_mean(size: tuple[int, int]) -> None:
    x = numbers(2, 3, *size)
    pools = tent_pool(x, num_cells=4)

    def tent(pixel: int, cell: int, count: int) -> float:
        return max(0.0, 1 - abs((pixel + 0.5) / count * 4 - (cell + 0.5)))

    for i in range(4):
        for j in range(4):
            total, weights = torch.zeros(2, 3, dtype=torch.float64), 0.0
            for m in range(size[0]):
                for n in range(size[1]):
                    weight = tent(m, i, size[0]) * tent(n, j, size[1])
                    total, weights = total + weight * x[:, :, m, n], weights + weight
            expected = total / weights if weights else total
            torch.testing.assert_close(pools[:, :, i, j], expected)


def test_gradients() -> None:
    x, pose = numbers(1, 1, 3, 5).requires_grad_(), poses(1, size=0.11).requires_grad_()
    assert torch.autograd.gradcheck(affine_sample, (x, pose))
    assert torch.autograd.gradcheck(tent_pool, (x,))
    assert torch.autograd.gradcheck(lambda pose: affine_corners(pose, (3, 5)), (pose,))
