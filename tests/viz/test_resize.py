"""Resizing of images and maps."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.viz.heatmap import resize_image, resize_map

SIDES = st.integers(2, 60)


def test_equal_size_returns_the_same_array() -> None:
    image, values = np.zeros((5, 7, 3), np.uint8), np.zeros((5, 7))
    assert resize_image(image, (5, 7)) is image
    assert resize_map(values, (5, 7)) is values


def test_tiny_image_is_enlarged_with_nearest_neighbors() -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(
        resize_image(image, (12, 20)), np.kron(image, np.ones((4, 4, 1), np.uint8))
    )


@given(y=SIDES, x=SIDES, height=SIDES, width=SIDES)
def test_constant_map_stays_constant_beside_nan(y: int, x: int, height: int, width: int) -> None:
    values = np.full((y, x), 0.3)
    values[:, x // 2 :] = np.nan
    result = resize_map(values, (height, width))
    assert result.shape == (height, width)
    np.testing.assert_allclose(result[~np.isnan(result)], 0.3, rtol=1e-5)
    share = np.isnan(result).mean() - np.isnan(values).mean()
    assert abs(share) <= 0.5 / width + 1e-9


def test_peak_position_is_kept() -> None:
    values = np.zeros((24, 40))
    values[6:12, 20:30] = 1
    for size in ((6, 10), (48, 80), (17, 31)):
        mass = resize_map(values, size).astype(float)
        mass /= mass.sum()
        assert mass.sum(1) @ (np.arange(size[0]) + 0.5) / size[0] == pytest.approx(9 / 24, abs=0.01)
        assert mass.sum(0) @ (np.arange(size[1]) + 0.5) / size[1] == pytest.approx(
            25 / 40, abs=0.01
        )
