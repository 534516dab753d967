"""Maps without their image, and maps that speak for and against."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.viz.maps.heatmap import (
    Style,
    cold_colors,
    colored_map,
    glowing_colors,
    level_steps,
    overlay,
)

RNG = np.random.default_rng(7)


def photo(y: int = 40, x: int = 60) -> np.ndarray:
    down, along = np.mgrid[:y, :x] / max(y, x)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 90 * layer for layer in layers], axis=-1).astype(np.uint8)


def test_a_map_alone_lies_on_a_quiet_image_as_the_overlay_does() -> None:
    # oracle: composed by hand, in floats
    image, values = photo(), RNG.random((40, 60))
    alone = colored_map(values, opacity=0.7).astype(float)
    cover = alone[..., 3:] / 255
    quiet = overlay(image, np.zeros((40, 60))).astype(float)
    np.testing.assert_allclose(
        alone[..., :3] * cover + quiet * (1 - cover), overlay(image, values), atol=1.0
    )


def test_what_was_not_seen_is_transparent() -> None:
    values = np.array([[np.nan, 0.0, 1.0, np.inf]])
    assert colored_map(values)[0, :, 3].tolist() == [0, 0, 255, 255]


@given(size=st.floats(0, 1.5), style=st.sampled_from(["heat", "light", "blur"]))
def test_signs_show_alike_but_for_their_colors(size: float, style: Style) -> None:
    image = np.full((1, 2, 3), 120, np.uint8)
    shown = overlay(image, np.array([[size, -size]]), style=style, signed=True)
    assert shown[0, 0].tolist() == shown[0, 1, ::-1].tolist()
    plain = overlay(image, np.array([[size, 0.0]]), style=style)
    assert shown[0, 0].tolist() == plain[0, 0].tolist()


def test_the_cold_twin_exchanges_red_and_blue() -> None:
    warm = np.frombuffer(glowing_colors("magma"), np.uint8).reshape(256, 3)
    cold = np.frombuffer(cold_colors("magma"), np.uint8).reshape(256, 3)
    np.testing.assert_array_equal(warm[:, ::-1], cold)


def test_levels_of_signed_values_go_by_their_size() -> None:
    values = np.array([[-2.0, -0.5, 0.0, 0.5, np.nan]])
    assert level_steps(values, 0.0, 1.0, signed=True).tolist() == [[255, 128, 0, 128, 0]]


def test_blur_is_sharp_where_attention_is_full_and_soft_where_there_is_none() -> None:
    stripes = np.zeros((48, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    values = np.zeros((48, 64))
    values[:, 40:] = 1.0
    shown = overlay(stripes, values, style="blur").astype(int)
    np.testing.assert_array_equal(shown[:, 40:], stripes[:, 40:])
    assert np.ptp(shown[10:-10, 10:30]) < 20


@pytest.mark.parametrize("times", [1, 6])
def test_a_large_image_is_blurred_as_a_small_one(times: int) -> None:
    small = photo(48, 64).repeat(times, 0).repeat(times, 1)
    shown = overlay(small, np.zeros(small.shape[:2]), style="blur")
    first = overlay(photo(48, 64), np.zeros((48, 64)), style="blur")
    means = shown.reshape(48, times, 64, times, 3).mean((1, 3))
    assert np.abs(means - first).mean() < 4


@pytest.mark.parametrize("style", ["heat", "blur"])
def test_signed_maps_look_as_they_did(
    golden: Callable[[str, np.ndarray], None], style: Style
) -> None:
    y, x = np.mgrid[:60, :90]
    values = np.sin(x / 12) * np.exp(-(((y - 30) / 18) ** 2))
    golden(f"overlay_signed_{style}", overlay(photo(60, 90), values, style=style, signed=True))
