"""Overlays and transparent maps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import visattn.viz.heatmap
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.viz.heatmap import (
    Style,
    colormap_lut,
    map_to_rgba,
    overlay,
    overlay_palette,
    overlays,
    quantize_levels,
    signed_palettes,
)

STYLES = st.sampled_from(["heat", "light"])


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


@given(seed=st.integers(0, 999), style=STYLES)
def test_pixels_are_independent(seed: int, style: Style) -> None:
    # oracle: each pixel drawn in an image of its own, of one pixel
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    values = rng.uniform(-0.2, 1.3, (3, 5))
    whole = overlay(image, values, style=style)
    for y, x in np.ndindex(3, 5):
        alone = overlay(image[y : y + 1, x : x + 1], values[y : y + 1, x : x + 1], style=style)
        assert whole[y, x].tolist() == alone[0, 0].tolist()


@pytest.mark.parametrize("style", ["heat", "light", "blur", "contour"])
def test_several_maps_are_drawn_as_each_alone(style: Style) -> None:
    maps = [hill(), 3 * hill()[::-1], hill()[:, ::-1].copy()]
    maps[1][:, :11] = np.nan  # that of a single map lies outside of the input
    ends = [1.0, 2.0, 0.5]
    drawn = overlays(scene(), maps, vmax=ends, style=style)
    alone = [
        overlay(scene(), each, vmax=end, style=style) for each, end in zip(maps, ends, strict=True)
    ]
    assert all(map(np.array_equal, drawn, alone))
    assert not np.array_equal(drawn[0], drawn[2])


def test_other_pixels_do_not_change_the_scale() -> None:
    image, values = scene(), hill()
    before = overlay(image, values)
    image[0, 0], values[0, 1] = 255, 1e6
    after = overlay(image, values)
    assert np.array_equal(before[1:], after[1:])
    assert np.array_equal(before[0, 2:], after[0, 2:])


def test_full_attention_has_the_top_color_and_none_a_faded_image() -> None:
    image = np.full((1, 3, 3), 100, np.uint8)
    shown = overlay(image, np.array([[0.0, 1.0, 2.0]]), opacity=1.0)
    assert shown[0, 0].tolist() == [69, 69, 69]  # 0.82 of dark pixels, 0.55 of white
    assert shown[0, 1].tolist() == shown[0, 2].tolist() == colormap_lut()[255].tolist()


def test_zero_opacity_hides_the_map() -> None:
    image = scene()
    none = overlay(image, np.zeros(image.shape[:2]))
    assert np.array_equal(overlay(image, hill(), opacity=0.0), none)


def test_light_style_shows_the_image_at_full_attention() -> None:
    image = scene()
    shown = overlay(image, np.ones(image.shape[:2]), style="light")
    assert np.array_equal(shown, image)


def test_values_are_clamped_to_the_scale() -> None:
    image = np.full((1, 4, 3), 200, np.uint8)
    shown = overlay(image, np.array([[-9.0, 2.0, 4.0, np.inf]]), vmin=2.0, vmax=4.0)
    assert np.array_equal(shown[0, 0], shown[0, 1])
    assert np.array_equal(shown[0, 2], shown[0, 3])
    same = overlay(image, np.array([[0.0, 0.0, 1.0, 1.0]]))
    assert np.array_equal(shown, same)


def test_coverage_increases_with_attention() -> None:
    image = np.zeros((1, 256, 3), np.uint8)
    shown = overlay(image, np.linspace(0, 1, 256)[None], colormap="gray").astype(int)[0, :, 0]
    assert (np.diff(shown) >= 0).all()
    assert shown[255] == pytest.approx(0.7 * 255, abs=1)


def test_what_was_not_seen_is_dim_and_lies_outside_a_frame() -> None:
    values = np.full((480, 60), np.nan)
    values[100:300, 20:40] = 0.9
    shown = overlay(np.full((480, 60, 3), 150, np.uint8), values)
    frame = np.zeros((480, 60), bool)
    frame[99:301, 19:41] = True
    assert set(shown[~frame].ravel()) == {round(0.38 * 150) + 14}
    assert set(shown[frame & np.isnan(values)].ravel()) == {190}


def test_what_was_not_seen_is_hatched_in_print() -> None:
    image = scene(61, 61)
    values = np.full((61, 61), 0.9)
    values[:, 31:] = np.nan
    overlay = partial(visattn.viz.heatmap.overlay, hatched=True)
    shown = overlay(image, values).astype(int)
    unseen = shown[:, 31:]
    assert (unseen == unseen[:, :, :1]).all()
    flat = overlay(np.full((61, 61, 3), 150, np.uint8), np.full((61, 61), np.nan))[..., 0]
    dark, line = np.unique(flat)
    assert 0.05 < (flat == line).mean() < 0.3
    assert dark < line < 150
    assert np.array_equal(flat[1:, :-1], flat[:-1, 1:])  # the lines slant
    assert np.array_equal(shown[:, :31], overlay(image, np.full((61, 61), 0.9))[:, :31])


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
        ({"values": np.zeros((5, 7))}, r"\(43, 61\), got \(5, 7\)|Expected type: .*y x"),
        ({"vmin": 1.0}, "vmin must be below vmax, got 1.0 and 1.0"),
        ({"vmax": float("nan")}, "vmin must be below vmax"),
        ({"opacity": 1.1}, "opacity must be between 0 and 1, got 1.1"),
        ({"colormap": "heat"}, "unknown colormap 'heat'"),
        ({"style": "fog"}, "got 'fog'|Expected type: .*Literal"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        overlay(**{"image": scene(), "values": hill(), **change})


@pytest.mark.parametrize("style", ["heat", "light"])
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


RNG = np.random.default_rng(7)


def photo(y: int = 40, x: int = 60) -> np.ndarray:
    down, along = np.mgrid[:y, :x] / max(y, x)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 90 * layer for layer in layers], axis=-1).astype(np.uint8)


def test_transparent_map_composes_to_the_overlay() -> None:
    # oracle: composed by hand, in floats
    image, values = photo(), RNG.random((40, 60))
    alone = map_to_rgba(values, opacity=0.7).astype(float)
    cover = alone[..., 3:] / 255
    quiet = overlay(image, np.zeros((40, 60))).astype(float)
    np.testing.assert_allclose(
        alone[..., :3] * cover + quiet * (1 - cover), overlay(image, values), atol=1.0
    )


def test_nan_is_transparent() -> None:
    values = np.array([[np.nan, 0.0, 1.0, np.inf]])
    assert map_to_rgba(values)[0, :, 3].tolist() == [0, 0, 255, 255]


@given(size=st.floats(0, 1.5), style=st.sampled_from(["light", "blur"]))
def test_styles_without_color_show_magnitudes(size: float, style: Style) -> None:
    image = np.full((1, 2, 3), 120, np.uint8)
    shown = overlay(image, np.array([[size, -size]]), style=style, signed=True)
    assert shown[0, 0].tolist() == shown[0, 1].tolist()
    plain = overlay(image, np.array([[size, 0.0]]), style=style)
    assert shown[0, 0].tolist() == plain[0, 0].tolist()


def test_signed_maps_are_orange_and_blue() -> None:
    shown = overlay(np.zeros((1, 2, 3), np.uint8), np.array([[1.0, -1.0]]), opacity=1, signed=True)
    positive, negative = signed_palettes()
    assert shown[0].tolist() == [list(positive[-3:]), list(negative[-3:])]


@pytest.mark.parametrize("name", ["magma", "gray", "viridis"])
def test_colors_are_lighter_than_any_dimmed_photo(name: str) -> None:
    white = overlay(np.full((1, 1, 3), 255, np.uint8), np.zeros((1, 1)))[0, 0]
    for palette in (overlay_palette(name), *signed_palettes()):
        colors = np.frombuffer(palette, np.uint8).reshape(256, 3)
        assert ((colors @ [0.299, 0.587, 0.114]) > white.max()).all()


def test_signed_values_are_quantized_by_magnitude() -> None:
    values = np.array([[-2.0, -0.5, 0.0, 0.5, np.nan]])
    assert quantize_levels(values, 0.0, 1.0, signed=True).tolist() == [[255, 128, 0, 128, 0]]


def test_blur_style_is_sharp_at_full_attention_and_blurred_without() -> None:
    stripes = np.zeros((48, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    values = np.zeros((48, 64))
    values[:, 40:] = 1.0
    shown = overlay(stripes, values, style="blur").astype(int)
    np.testing.assert_array_equal(shown[:, 40:], stripes[:, 40:])
    assert np.ptp(shown[10:-10, 10:30]) < 20


@pytest.mark.parametrize("times", [1, 6])
def test_blur_is_scale_invariant(times: int) -> None:
    small = photo(48, 64).repeat(times, 0).repeat(times, 1)
    shown = overlay(small, np.zeros(small.shape[:2]), style="blur")
    first = overlay(photo(48, 64), np.zeros((48, 64)), style="blur")
    means = shown.reshape(48, times, 64, times, 3).mean((1, 3))
    assert np.abs(means - first).mean() < 4


@pytest.mark.parametrize("style", ["heat", "blur"])
def test_golden_image_of_signed_maps(
    golden: Callable[[str, np.ndarray], None], style: Style
) -> None:
    y, x = np.mgrid[:60, :90]
    values = np.sin(x / 12) * np.exp(-(((y - 30) / 18) ** 2))
    golden(f"overlay_signed_{style}", overlay(photo(60, 90), values, style=style, signed=True))
