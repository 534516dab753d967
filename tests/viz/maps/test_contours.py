import sys

import numpy as np
import pytest

from visattn.viz.maps.contours import outlined


def blob(size: tuple[int, int] = (31, 43)) -> np.ndarray:
    y, x = np.mgrid[: size[0], : size[1]]
    return np.exp(-((y - 11.0) ** 2 + (x - 29.0) ** 2) / 50)


def test_the_line_runs_where_attention_crosses_the_level() -> None:
    drawn = outlined(np.zeros((31, 43, 3), np.uint8), blob(), 0.5, width=1)
    on_line = drawn[..., 0] == 255
    radius = np.hypot(*(np.argwhere(on_line) - (11, 29)).T)
    expected = np.sqrt(50 * np.log(2))
    assert on_line.sum() > 20
    assert np.abs(radius - expected).max() < 1.5
    assert not drawn[11, 29].any()


def test_a_level_that_nothing_reaches_leaves_the_image() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    np.testing.assert_array_equal(outlined(image, blob(), 2.0), image)


def test_unseen_pixels_reach_no_level() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    np.testing.assert_array_equal(outlined(image, np.full((31, 43), np.nan), 0.1), image)


def test_the_image_handed_over_is_not_drawn_on() -> None:
    image = np.full((31, 43, 3), 77, np.uint8)
    assert not np.array_equal(outlined(image, blob(), 0.5), image)
    assert (image == 77).all()


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="one per pixel"):
        outlined(np.zeros((5, 7, 3), np.uint8), blob(), 0.5)
    with pytest.raises(ValueError, match="at least 1 pixel"):
        outlined(np.zeros((31, 43, 3), np.uint8), blob(), 0.5, width=0)


def test_without_opencv_the_error_names_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ImportError, match=r"libgl1[\s\S]*opencv-python-headless"):
        outlined(np.zeros((31, 43, 3), np.uint8), blob(), 0.5)
