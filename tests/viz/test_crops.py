"""Frames of cropped regions on the image."""

from collections.abc import Callable

import numpy as np
import pytest

from visattn.viz.tiles import crop_panel, draw_crop_frame

TURNED = np.array([[30.0, 8.0], [52.0, 30.0], [30.0, 52.0], [8.0, 30.0]])


def waves(rows: int, columns: int) -> np.ndarray:
    y, x = np.mgrid[:rows, :columns]
    shade = 120 + 60 * np.sin(x / 5) * np.cos(y / 7)
    return np.repeat(shade[..., None], 3, axis=2).astype(np.uint8)


def test_golden_image_of_a_rotated_frame(golden: Callable[[str, np.ndarray], None]) -> None:
    golden("crop_turned", draw_crop_frame(waves(60, 72), TURNED))


def test_golden_image_of_a_panel_of_three(golden: Callable[[str, np.ndarray], None]) -> None:
    images = np.stack([waves(28, 28)] * 3)
    corners = np.stack([TURNED * 28 / 60, TURNED * 14 / 60, TURNED * 28 / 60 + 9])
    golden("crop_panel", crop_panel(images, corners, 255 - images, height=28, columns=2)[:96])


def test_input_image_is_not_modified() -> None:
    image = waves(20, 30)
    kept = image.copy()
    draw_crop_frame(image, TURNED / 3)
    assert np.array_equal(image, kept)


def test_frame_outside_of_the_image_draws_nothing() -> None:
    image = waves(20, 30)
    assert np.array_equal(draw_crop_frame(image, TURNED + 1e9), image)


@pytest.mark.parametrize("corners", [TURNED * np.nan, TURNED + np.inf])
def test_corners_must_be_finite(corners: np.ndarray) -> None:
    with pytest.raises(ValueError, match="corners must be finite"):
        draw_crop_frame(waves(20, 30), corners)


def test_panel_needs_an_image() -> None:
    with pytest.raises(ValueError, match="at least one image, got none"):
        crop_panel(
            np.zeros((0, 4, 4, 3), np.uint8), np.zeros((0, 4, 2)), np.zeros((0, 4, 4, 3), np.uint8)
        )
