"""Scan paths on an image: boxes, brightness and numbers."""

from collections.abc import Callable

import numpy as np
import pytest

from visattn.viz.canvas import Canvas
from visattn.viz.heatmap import colormap_lut
from visattn.viz.scanpaths.path import draw_number_marker, draw_scan_path, glimpse_colors

GRAY = np.full((60, 90, 3), 200, np.uint8)
THREE = np.array(
    [
        [[5.0, 5, 21, 21], [-3, -3, 29, 29]],
        [[40.0, 30, 56, 46], [32, 22, 64, 54]],
        [[80.0, 8, 96, 24], [72, 0, 104, 32]],  # reaches out of the image
    ]
)


def painted(canvas: Canvas) -> np.ndarray:
    return np.asarray(canvas.paint())


def shown(image: np.ndarray, color: tuple[int, int, int], near: int = 40) -> np.ndarray:
    """Return the pixels of a color."""
    return np.argwhere(np.abs(image.astype(int) - color).max(2) < near)


def test_colors_are_ordered_with_increasing_lightness() -> None:
    colors = glimpse_colors(7)
    light = [0.3 * r + 0.59 * g + 0.11 * b for r, g, b in colors]
    assert light == sorted(light)
    assert len(set(colors)) == 7
    assert all(list(item) in colormap_lut("plasma").tolist() for item in colors)
    assert len(glimpse_colors(1)) == 1


def test_boxes_are_drawn_at_their_position() -> None:
    drawn = painted(
        draw_scan_path(np.zeros((60, 90, 3), np.uint8), THREE[1:2, :1], show_numbers=False)
    )
    at = shown(drawn, glimpse_colors(1)[0])
    assert (at.min(0) >= [29, 39]).all()
    assert (at.max(0) <= [46, 56]).all()
    assert (at.min(0) <= [30, 40]).all()
    assert (at.max(0) >= [45, 55]).all()
    assert not (np.abs(at - [38, 48]) < 6).all(1).any()  # the center is not covered


def test_brightness_follows_the_finest_scale() -> None:
    drawn = painted(draw_scan_path(GRAY, THREE, show_numbers=False))
    assert drawn[12, 10, 0] == 200  # finest
    assert drawn[26, 34, 0] == 150  # in the wide window only
    assert drawn[57, 10, 0] == 100  # never


def test_fine_glimpses_stay_bright_under_later_coarse_windows() -> None:
    boxes = np.array(
        [[[30.0, 20, 46, 36], [22, 12, 54, 44]], [[40.0, 20, 56, 36], [32, 12, 64, 44]]]
    )
    assert painted(draw_scan_path(GRAY, boxes, show_numbers=False))[28, 34, 0] == 200


def test_margins_are_not_darkened() -> None:
    drawn = painted(draw_scan_path(GRAY, THREE, image_area=(10, 10, 80, 50), show_numbers=False))
    assert drawn[57, 10, 0] == 200
    assert drawn[25, 2, 0] == 200  # inside a wide window
    assert drawn[48, 12, 0] == 100


def test_numbers_and_lines_leave_what_was_looked_at_visible() -> None:
    boxes = np.array([[[30.0, 30, 50, 50]], [[70.0, 60, 90, 80]]])
    drawn = painted(draw_scan_path(np.zeros((100, 120, 3), np.uint8), boxes))
    for box, color in zip(boxes[:, 0], glimpse_colors(2), strict=True):
        left, top, right, bottom = box.astype(int)
        inside = drawn[top + 5 : bottom - 3, left + 5 : right - 3]
        assert not inside.any()
        assert len(shown(drawn[top - 12 : top, left - 12 : left], color)) > 15  # the number


def test_only_the_last_glimpse_has_its_coarse_scales() -> None:
    black = np.zeros((60, 90, 3), np.uint8)
    drawn = painted(draw_scan_path(black, THREE[:2], show_numbers=False))
    first, second = glimpse_colors(2)
    assert len(shown(drawn[25:32, :25], first)) == 0  # the lower side of its wide window
    assert drawn[53, 48].max() > 60  # that of the second
    assert np.abs(drawn[53, 48].astype(int) - np.array(second) * 150 / 255).max() < 60


@pytest.mark.parametrize("count", [2, 6, 20])
def test_numbers_at_the_same_location_do_not_overlap(count: int) -> None:
    boxes = np.tile(np.array([[[92.0, 92, 108, 108]]]), (count, 1, 1))
    drawn = painted(draw_scan_path(np.zeros((200, 200, 3), np.uint8), boxes))
    areas = [len(shown(drawn, color, 20)) for color in glimpse_colors(count)]
    if count == 20:  # consecutive glimpses have similar colors
        areas = areas[::4]
    assert min(areas) > 20


def test_lines_connect_consecutive_numbers() -> None:
    boxes = np.array([[[10.0, 22, 26, 38]], [[64.0, 22, 80, 38]]])
    drawn = painted(draw_scan_path(np.zeros((60, 90, 3), np.uint8), boxes))
    between = shown(drawn[:, 35:55], glimpse_colors(2)[1])
    assert set(between[:, 1]) == set(range(20))
    on_line = between[between[:, 0] > 24]  # the number of the second is above
    assert set(on_line[:, 1]) == set(range(20))
    assert np.abs(on_line[:, 0] - 29.5).max() < 3


def test_drawing_is_deterministic_and_does_not_modify_the_image() -> None:
    kept, boxes = GRAY.copy(), THREE.copy()
    first = painted(draw_scan_path(GRAY, THREE))
    np.testing.assert_array_equal(first, painted(draw_scan_path(GRAY, THREE)))
    np.testing.assert_array_equal(GRAY, kept)
    np.testing.assert_array_equal(THREE, boxes)


@pytest.mark.parametrize("size", [(1, 1), (3, 300), (300, 3), (17, 13)])
def test_paths_on_any_image_size(size: tuple[int, int]) -> None:
    image = np.zeros((*size, 3), np.uint8)
    assert painted(draw_scan_path(image, THREE)).shape == image.shape
    assert painted(draw_scan_path(image, THREE * 1e9)).shape == image.shape


def test_invalid_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="boxes must be finite"):
        painted(draw_scan_path(GRAY, THREE * np.nan))


def test_number_labels_have_contrasting_text() -> None:
    for color, ink in (((248, 224, 37), (34, 36, 40)), ((120, 10, 165), (250, 250, 247))):
        page = Canvas(60, 60)
        draw_number_marker(page, (30, 30), 8, color, 20)
        drawn = painted(page)
        assert len(shown(drawn, color, 4)) > 600
        assert len(shown(drawn[18:42, 18:42], ink, 30)) > 20


def test_golden_image_of_boxes(golden: Callable[[str, np.ndarray], None]) -> None:
    # without numbers: letters differ between releases of the library that draws them
    y, x = np.mgrid[:60, :90]
    shades = np.stack([110 + 60 * np.sin(x / 7), 130 + 50 * np.cos(y / 5), 90 + x], -1)
    golden(
        "scan_boxes", painted(draw_scan_path(shades.astype(np.uint8), THREE, show_numbers=False))
    )
