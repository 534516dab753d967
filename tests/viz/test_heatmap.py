"""Overlays and transparent maps."""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.viz.heatmap import (
    CONTOURS,
    Style,
    colormap_lut,
    overlay,
    palettes,
    quantize_levels,
    resize_image,
)
from visattn.viz.maps import resize_map, values_at
from visattn.viz.marks import draw_contour, draw_region

SIDES = st.integers(2, 60)


def scene(y: int = 43, x: int = 61) -> np.ndarray:
    """Return a small image: a sky, a meadow, a house."""
    image = np.zeros((y, x, 3), np.uint8)
    image[:] = np.linspace((120, 170, 230), (220, 235, 250), y).astype(np.uint8)[:, None]
    image[2 * y // 3 :] = (90, 140, 60)
    image[y // 3 : 4 * y // 5, x // 2 : 4 * x // 5] = (190, 70, 50)
    return image


def hill(y: int = 43, x: int = 61) -> np.ndarray:
    down, along = np.mgrid[:y, :x]
    return np.exp(-(((down / y - 0.5) / 0.2) ** 2) - ((along / x - 0.6) / 0.2) ** 2)


@given(seed=st.integers(0, 999), style=st.sampled_from(["heat", "quantitative", "light"]))
def test_pixels_are_independent(seed: int, style: Style) -> None:
    # oracle: each pixel drawn in an image of its own, of one pixel
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    values = rng.uniform(-0.2, 1.3, (3, 5))
    whole = overlay(image, values, style=style)
    for y, x in np.ndindex(3, 5):
        alone = overlay(image[y : y + 1, x : x + 1], values[y : y + 1, x : x + 1], style=style)
        assert whole[y, x].tolist() == alone[0, 0].tolist()


def test_values_are_clamped_to_the_scale() -> None:
    image = np.full((1, 4, 3), 200, np.uint8)
    shown = overlay(image, np.array([[-9.0, 2.0, 4.0, np.inf]]), vmin=2.0, vmax=4.0)
    assert np.array_equal(shown[0, 0], shown[0, 1])
    assert np.array_equal(shown[0, 2], shown[0, 3])
    same = overlay(image, np.array([[0.0, 0.0, 1.0, 1.0]]))
    assert np.array_equal(shown, same)


def test_what_was_not_seen_is_dim_and_lies_outside_a_frame() -> None:
    values = np.full((480, 60), np.nan)
    values[100:300, 20:40] = 0.9
    shown = overlay(np.full((480, 60, 3), 150, np.uint8), values)
    frame = np.zeros((480, 60), bool)
    frame[99:301, 19:41] = True
    assert set(shown[~frame].ravel()) == {round(0.55 * 150 + 14)}
    assert set(shown[frame & np.isnan(values)].ravel()) == {190}


def test_inputs_are_not_modified() -> None:
    image, values = scene(), hill()
    values[0] = np.nan
    kept, known = image.copy(), values.copy()
    overlay(image, values)
    np.testing.assert_array_equal(image, kept)
    np.testing.assert_array_equal(values, known)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vmin": 1.0}, "vmin must be below vmax, got 1.0 and 1.0"),
        ({"vmax": float("nan")}, "vmin must be below vmax"),
        ({"opacity": 1.1}, "opacity must be between 0 and 1, got 1.1"),
        ({"colormap": "heat"}, "unknown colormap 'heat'"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        overlay(**{"image": scene(), "values": hill(), **change})


@pytest.mark.parametrize("style", ["heat", "quantitative", "light", "contour"])
def test_golden_image_of_an_overlay(
    golden: Callable[[str, np.ndarray], None], style: Style
) -> None:
    geometry = Geometry.identity((43, 61)).cropped(0, 9, (43, 43))
    cells = torch.zeros(7, 7)
    cells[3, 4], cells[2, 2], cells[5, 1] = 1.0, 0.5, 0.2
    values = AttentionMap(cells, "site", "words", geometry).resize_to_image().numpy()
    golden(f"overlay_{style}", overlay(scene(), values, style=style))


def test_golden_image_of_cells(golden: Callable[[str, np.ndarray], None]) -> None:
    geometry = Geometry.identity((43, 61)).padded(9, 0, (61, 61))
    cells = torch.zeros(5, 5)
    cells[2, 3], cells[2, 1], cells[0, 0] = 1.0, 0.4, 1.0
    hard = AttentionMap(cells, "site", "gate", geometry).resize_to_image(smooth=False).numpy()
    golden("overlay_cells", overlay(scene(), hard, colormap="viridis"))


def test_signed_values_are_quantized_by_magnitude() -> None:
    values = np.array([[-2.0, -0.5, 0.0, 0.5, np.nan]])
    assert quantize_levels(values, 0.0, 1.0, signed=True).tolist() == [[255, 128, 0, 128, 0]]


def test_the_photo_keeps_its_color_below_a_tenth_of_the_scale() -> None:
    image = scene()
    none = overlay(image, np.zeros(image.shape[:2]))
    assert np.array_equal(overlay(image, np.full(image.shape[:2], 0.098)), none)
    assert not np.array_equal(overlay(image, np.full(image.shape[:2], 0.15)), none)
    spread = np.ptp(none.astype(int), axis=-1) / np.maximum(np.ptp(image.astype(int), axis=-1), 1)
    assert np.median(spread) > 0.5  # of its color
    assert (none >= 0.74 * image.min(-1, keepdims=True) - 2).all()  # of its brightness


@pytest.mark.parametrize("style", ["heat", "quantitative"])
def test_full_attention_has_the_top_color(style: Style) -> None:
    image = np.full((1, 3, 3), 100, np.uint8)
    shown = overlay(image, np.array([[0.0, 1.0, 2.0]]), opacity=1.0, style=style)
    assert shown[0, 1].tolist() == shown[0, 2].tolist() == colormap_lut()[255].tolist()
    signed = overlay(image, np.array([[1.0, -1.0, 0.0]]), opacity=1, style=style, signed=True)
    _, positive, negative = palettes(style, "inferno")
    assert signed[0, :2].tolist() == [list(positive[-3:]), list(negative[-3:])]


@given(size=st.floats(0, 1.5))
def test_light_shows_magnitudes(size: float) -> None:
    image = np.full((1, 2, 3), 120, np.uint8)
    shown = overlay(image, np.array([[size, -size]]), style="light", signed=True)
    assert shown[0, 0].tolist() == shown[0, 1].tolist()


def test_contour_is_where_attention_crosses_the_level() -> None:
    y, x = np.mgrid[:31, :43]
    blob = np.exp(-((y - 11.0) ** 2 + (x - 29.0) ** 2) / 50)
    drawn = draw_contour(np.zeros((31, 43, 3), np.uint8), blob, 0.5)
    radius = np.hypot(*(np.argwhere(drawn[..., 0] > 127) - (11, 29)).T)
    assert len(radius) > 20
    assert np.abs(radius - np.sqrt(50 * np.log(2))).max() < 1.5
    assert not drawn[11, 29].any()


def test_lines_are_at_quarters_of_the_range_and_as_wide_on_any_slope() -> None:
    ramp = np.linspace(0.0, 1.0, 101)[None].repeat(61, axis=0)
    drawn = overlay(np.zeros((61, 101, 3), np.uint8), ramp, style="contour")[30].max(-1)
    peaks = [int(np.argmax(drawn[at - 8 : at + 9])) + at - 8 for at in (25, 50, 75)]
    assert peaks == [round(100 * share) for share in CONTOURS]
    widths = []
    for steepness in (1.0, 3.0):
        line = draw_contour(np.zeros((61, 101, 3), np.uint8), steepness * (ramp - 0.4), 0.0)
        widths.append(line[30, :, 0].sum() / 255)
    assert widths == pytest.approx([1.6, 1.6], abs=0.15)


@pytest.mark.parametrize("level", [2.0, np.nan])
def test_maps_that_do_not_reach_a_level_have_no_line(level: float) -> None:
    image = np.random.default_rng(1).integers(0, 256, (11, 13, 3), dtype=np.uint8)
    for values in (np.full((11, 13), 0.5), np.full((11, 13), np.nan), np.zeros((11, 13))):
        np.testing.assert_array_equal(draw_contour(image, values, level), image)


def test_a_region_is_outlined() -> None:
    mask = np.zeros((60, 80), bool)
    mask[20:40, 30:60] = True
    drawn = draw_region(np.full((60, 80, 3), 100, np.uint8), mask)[..., 0]
    at = np.argwhere(drawn == 255)
    assert (*at.min(0), *at.max(0)) == pytest.approx((20, 30, 39, 59), abs=1)
    assert (drawn[25:35, 35:55] == 100).all()


def test_a_fine_map_keeps_its_peak_on_a_small_tile() -> None:
    values = torch.zeros(60, 60)
    values[31, 17] = 1.0
    fine = AttentionMap(values, "x", "gradient", Geometry.identity((600, 600)))
    assert values_at(fine, (20, 20)).max() > 0.05
    y, x = np.unravel_index(values_at(fine, (20, 20)).argmax(), (20, 20))
    assert (y, x) == (10, 5)


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


@pytest.mark.parametrize("name", ["magma", "viridis", "inferno", "jet"])
def test_tables_match_matplotlib(name: str) -> None:
    expected = np.rint(mpl.colormaps[name](np.arange(256))[:, :3] * 255)
    assert np.abs(colormap_lut(name).astype(int) - expected).max() <= 1
