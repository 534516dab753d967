"""Contour lines."""

from collections.abc import Callable

import numpy as np
import pytest

from visattn.viz.heatmap import overlay, signed_palettes
from visattn.viz.marks import CONTOUR_FRACTIONS, draw_contours, draw_range_contours

WHITE = (255, 255, 255)


def blob(size: tuple[int, int] = (31, 43)) -> np.ndarray:
    y, x = np.mgrid[: size[0], : size[1]]
    return np.exp(-((y - 11.0) ** 2 + (x - 29.0) ** 2) / 50)


def test_contour_is_where_attention_crosses_the_level() -> None:
    drawn = draw_contours(np.zeros((31, 43, 3), np.uint8), blob(), [0.5], [WHITE], line_width=1)
    on_line = drawn[..., 0] > 127
    radius = np.hypot(*(np.argwhere(on_line) - (11, 29)).T)
    expected = np.sqrt(50 * np.log(2))
    assert on_line.sum() > 20
    assert np.abs(radius - expected).max() < 1.5
    assert not drawn[11, 29].any()


def test_unreached_level_leaves_the_image_unchanged() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    np.testing.assert_array_equal(draw_contours(image, blob(), [2.0], [WHITE]), image)


def test_nan_pixels_reach_no_level() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    np.testing.assert_array_equal(
        draw_contours(image, np.full((31, 43), np.nan), [0.1], [WHITE]), image
    )


def test_input_image_is_not_modified() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    assert not np.array_equal(draw_contours(image, blob(), [0.5], [WHITE]), image)
    assert (image == 77).all()


def test_sizes_must_match() -> None:
    with pytest.raises(ValueError, match="one per pixel"):
        draw_contours(np.zeros((5, 7, 3), np.uint8), blob(), [0.5], [WHITE])
    with pytest.raises(ValueError, match="above 0 pixels"):
        draw_contours(np.zeros((31, 43, 3), np.uint8), blob(), [0.5], [WHITE], line_width=0)


WHITE_PALETTE = bytes([255] * 768)


def test_lines_are_at_their_levels_only() -> None:
    # number: on a plain slope the value equals the place, so each level has one column
    ramp = np.linspace(0.0, 1.0, 101)[None].repeat(61, axis=0)
    drawn = draw_range_contours(np.zeros((61, 101, 3), np.uint8), ramp, 0.0, 1.0, [WHITE_PALETTE])[
        30, :, 0
    ]
    assert [int(column) for column in np.flatnonzero(drawn > 200)] == [25, 50, 75]
    away = np.abs(np.arange(101)[:, None] - 100 * np.array(CONTOUR_FRACTIONS)).min(1)
    assert (drawn[away > 3] == 0).all()


def test_line_width_is_independent_of_the_slope() -> None:
    y, x = np.mgrid[:201, :201] - 100.0
    blank = np.zeros((201, 201, 3), np.uint8)
    widths = []
    for steepness in (1.5, 4.0):
        hill = 1 - steepness * np.hypot(y, x) / 140
        drawn = draw_range_contours(blank, hill, 0.0, 1.0, [WHITE_PALETTE])[100, 100:, 0] / 255.0
        widths.append(drawn.sum() / 3)
    assert widths == pytest.approx([1.6, 1.6], abs=0.1)


def test_the_edge_of_a_cell_is_drawn_in_full_color_on_both_sides() -> None:
    cell = np.zeros((9, 23))
    cell[:, 7:13] = 0.25
    drawn = draw_contours(np.zeros((9, 23, 3), np.uint8), cell, [0.125], [WHITE])[4, :, 0]
    assert np.flatnonzero(drawn).tolist() == [6, 7, 12, 13]
    assert (drawn[[6, 7, 12, 13]] == 255).all()


def test_constant_and_nan_maps_have_no_lines() -> None:
    image = np.random.default_rng(1).integers(0, 256, (11, 13, 3), dtype=np.uint8)
    for values in (np.full((11, 13), 0.5), np.full((11, 13), np.nan), np.zeros((11, 13))):
        np.testing.assert_array_equal(
            draw_range_contours(image, values, 0.0, 1.0, [WHITE_PALETTE]), image
        )


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1)])
def test_the_smallest_images_can_be_drawn(size: tuple[int, int]) -> None:
    values = np.linspace(0, 1, size[0] * size[1]).reshape(size)
    assert draw_range_contours(
        np.zeros((*size, 3), np.uint8), values, 0.0, 1.0, [WHITE_PALETTE]
    ).shape == (
        *size,
        3,
    )


def test_negative_values_have_their_own_lines() -> None:
    ramp = np.linspace(-1.0, 1.0, 81)[None].repeat(21, axis=0)
    tables = signed_palettes()
    both = draw_range_contours(np.zeros((21, 81, 3), np.uint8), ramp, 0.0, 1.0, tables)[10].astype(
        int
    )
    item = draw_range_contours(np.zeros((21, 81, 3), np.uint8), ramp, 0.0, 1.0, tables[:1])[10]
    np.testing.assert_array_equal(both[40:], item[40:])
    assert (item[:38] == 0).all()
    lines = both.sum(-1) > 0
    np.testing.assert_array_equal(lines, lines[::-1])
    assert (both[:38, 2] >= both[:38, 0]).all()  # blue, where positive values are orange
    assert (both[43:, 0] >= both[43:, 2]).all()


def test_golden_image_of_contours(golden: Callable[[str, np.ndarray], None]) -> None:
    y, x = np.mgrid[:60, :90]
    hill = np.exp(-(((y - 30) / 15) ** 2) - ((x - 40) / 22) ** 2)
    hill[:, :9] = np.nan
    image = np.zeros((60, 90, 3), np.uint8)
    image[:] = np.linspace((120, 170, 230), (90, 140, 60), 60).astype(np.uint8)[:, None]
    golden("overlay_contour", overlay(image, hill, style="contour"))
