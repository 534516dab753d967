"""Itti-Koch saliency against a float64 implementation of the paper, and its invariances."""

import math
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from random_numbers import uniform
from scipy import ndimage
from torch.nn.functional import interpolate

from visattn.attribution.saliency import (
    BASELINES,
    itti_koch_saliency,
    normalize_peaks,
    saliency_scanpaths,
)

Plane = np.ndarray


def regridded(plane: Plane, size: tuple[int, int]) -> Plane:
    """Return the plane resampled to another grid by torch, antialiased where it is reduced."""
    grid = interpolate(torch.from_numpy(plane)[None, None], size, mode="bilinear", antialias=True)
    return grid[0, 0].numpy()


def striped(plane: Plane, angle: float) -> Plane:
    down, across = np.mgrid[-4:5, -4:5]
    wave = math.pi / 2 * (across * math.cos(angle) + down * math.sin(angle))
    bell = np.exp(-(across**2 + down**2) / 3.125)
    even, odd = bell * np.cos(wave), bell * np.sin(wave)
    even -= bell * even.sum() / bell.sum()
    even /= (even * np.cos(wave)).sum()
    odd /= (odd * np.sin(wave)).sum()
    patches = sliding_window_view(np.pad(plane, 4, mode="edge"), (9, 9))
    return np.hypot(*(np.tensordot(patches, part, 2) for part in (even, odd)))


def promoted(plane: Plane) -> Plane:
    """Return N(plane), where a plateau is a single maximum."""
    if plane.max() <= 1e-4:
        return np.zeros_like(plane)
    plane = plane / plane.max()
    highest = ndimage.maximum_filter(plane, 3, mode="constant", cval=-1)
    is_top = (plane > 0.1) & (plane >= highest - 1e-4)
    tops, count = cast("tuple[Plane, int]", ndimage.label(is_top, np.ones((3, 3))))
    others = sorted(ndimage.mean(plane, tops, range(1, count + 1)))[:-1]
    return plane * (1 - np.mean(others)) ** 2 if others else plane


def plain_saliency(image: Plane, centers: tuple[int, ...], last: int) -> Plane:
    r, g, b = image
    bright = (r + g + b) / 3
    bright_enough = bright > bright.max() / 10
    r, g, b = (np.where(bright_enough, of / bright, 0) for of in (r, g, b))
    red, green = np.maximum(r - (g + b) / 2, 0), np.maximum(g - (r + b) / 2, 0)
    blue = np.maximum(b - (r + g) / 2, 0)
    yellow = np.maximum((r + g) / 2 - np.abs(r - g) / 2 - b, 0)
    levels = []
    planes = [bright, red - green, blue - yellow]
    for level in range(last + 1):
        if level:
            half = tuple(-(-side // 2) for side in planes[0].shape)
            planes = [regridded(plane, half) for plane in planes]
        angles = [o * math.pi / 4 for o in range(4)] if level >= centers[0] else []
        levels.append(planes + [striped(planes[0], angle) for angle in angles])
    grid = levels[centers[-1]][0].shape
    totals = [np.zeros(grid) for _ in range(7)]
    for center, surround in {(c, min(c + apart, last)) for c in centers for apart in (3, 4)}:
        for feature, total in enumerate(totals):
            fine, coarse = levels[center][feature], levels[surround][feature]
            total += regridded(promoted(np.abs(fine - regridded(coarse, fine.shape))), grid)
    stripes = sum(promoted(total) for total in totals[3:])
    three = [totals[0], totals[1] + totals[2], stripes]
    mean = sum((promoted(of) for of in three), np.zeros(grid)) / 3
    return regridded(mean, image.shape[1:])


@pytest.mark.parametrize(
    ("size", "centers", "last"),
    [((19, 23), (0, 1, 2), 5), ((128, 131), (1, 2, 3), 8)],
)
def test_saliency_matches_the_paper(
    size: tuple[int, int], centers: tuple[int, ...], last: int
) -> None:
    two = uniform(2, 3, *size)
    two[1, :, 1:5, 3:11] *= 0.05
    got = itti_koch_saliency(two)
    for image, ours in zip(two, got, strict=True):
        wanted = torch.from_numpy(plain_saliency(image.numpy(), centers, last))
        assert wanted.max() > 0.03
        torch.testing.assert_close(ours, wanted, atol=1e-6, rtol=0)


@settings(max_examples=10)
@given(height=st.integers(1, 33), width=st.integers(1, 33), channels=st.sampled_from([1, 3]))
def test_saliency_is_in_0_to_1_and_flip_equivariant_at_any_size(
    height: int, width: int, channels: int
) -> None:
    x = uniform(2, channels, height, width)
    result = itti_koch_saliency(x)
    assert tuple(result.shape) == (2, height, width)
    assert result.min() >= 0
    assert result.max() <= 1 + 1e-12
    for axis in (2, 3):
        torch.testing.assert_close(itti_koch_saliency(x.flip(axis)), result.flip(axis - 1))


def test_constant_image_has_zero_saliency() -> None:
    for size, color in (((1, 1), 0.0), ((150, 40), 0.3), ((7, 33), 1.0)):
        image = torch.tensor([color, 0.9, 0.2]).view(1, 3, 1, 1).expand(1, 3, *size)
        assert torch.equal(itti_koch_saliency(image), torch.zeros(1, *size))


@settings(max_examples=20)
@given(seed=st.integers(0, 99), height=st.integers(5, 23))
def test_scanpath_visits_the_strongest_remaining_location(seed: int, height: int) -> None:
    saliency = uniform(3, height, 11, seed=seed)
    reach = min(height, 11) / 6
    path = saliency_scanpaths(saliency, 5)
    for plane, places in zip(saliency.tolist(), path.tolist(), strict=True):
        left = {(y, x): plane[y][x] for y in range(height) for x in range(11)}
        for place in places:
            y, x = max(left, key=lambda at: left[at])
            assert place == pytest.approx([(x + 0.5) / 11 * 2 - 1, (y + 0.5) / height * 2 - 1])
            left = {at: left[at] for at in left if math.hypot(at[0] - y, at[1] - x) > reach}


def test_scanpath_starts_in_the_center_and_restarts_when_everything_is_inhibited() -> None:
    assert saliency_scanpaths(torch.zeros(2, 5, 7), 1).tolist() == [[[0.0, 0.0]]] * 2
    saliency = torch.tensor([[[0.1, 0.9]], [[0.4, 0.3]]])
    path = saliency_scanpaths(saliency, 5)[:, :, 0].tolist()
    assert path == [[0.5, -0.5, 0.5, -0.5, 0.5], [-0.5, 0.5, -0.5, 0.5, -0.5]]


def test_plateau_is_a_single_maximum() -> None:
    for flat in ([[1, 1]], [[1, 1, 1]] * 3, [[1, 0], [0, 1]], [[0, 1, 0], [1, 1, 1], [0, 1, 0]],
                 [[1]] * 7):  # fmt: skip
        top, rows = torch.zeros(1, 1, 9, 11), torch.tensor(flat)
        top[0, 0, 2 : 2 + len(rows), 3 : 3 + rows.shape[1]] = 4.0 * rows
        for height, peak in ((0.0, 1.0), (2.0, 0.25), (4.0, 0.0)):
            top[0, 0, 7, 9] = height  # another maximum
            assert float(normalize_peaks(top).max()) == pytest.approx(peak)


def test_rounding_errors_are_not_amplified_and_hide_no_plateau() -> None:
    noise = torch.rand(1, 1, 13, 17, generator=torch.Generator().manual_seed(0))
    assert torch.equal(normalize_peaks(9e-5 * noise), torch.zeros_like(noise))
    flat = torch.zeros(1, 1, 13, 17)
    flat[..., 3:9, 4:11] = 2.0
    assert torch.equal(normalize_peaks(flat + 1e-6 * noise) > 0.9, flat > 0)


def test_baselines_do_not_depend_on_the_batch() -> None:
    x = torch.randn(2, 3, 11, 13)
    for make in BASELINES.values():
        maps = make(x, [3, 4])
        assert len(maps) == 2
        assert bool((maps >= 0).all())
        assert torch.allclose(make(x[1:], [4]), maps[1:], atol=1e-5)
    center, random = BASELINES["center"](x, [])[0], BASELINES["random"](x, [0, 1])
    assert divmod(int(center.argmax()), 13) == (5, 6)
    assert torch.equal(center, center.flip(0, 1))
    assert not torch.equal(random[0], random[1])
