"""Conversion of arrays to 8-bit RGB; channels that are no colors, between two percentiles."""

import numpy as np
import pytest

from visattn.images.rgb import draw_channels, from_array, to_rgb


@pytest.mark.parametrize(
    ("array", "first"),
    [
        (np.array([[True, False]]), (255, 255, 255)),
        (np.array([[7, 8]], dtype=np.uint8), (7, 7, 7)),
        (np.array([[[7], [8]]], dtype=np.uint8), (7, 7, 7)),
        (np.array([[[0, 0], [8, 255]]], dtype=np.uint8), (255, 255, 255)),
        (np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8), (1, 2, 3)),
        (np.array([[[1, 2, 3, 255], [4, 5, 6, 0]]], dtype=np.uint8), (1, 2, 3)),
        (np.array([[[257, 514, 65535]]], dtype=np.uint16), (1, 2, 255)),
        (np.array([[0.2, 1.0]]), (51, 51, 51)),
        (np.array([[0.2, 1.0]], dtype=np.float16), (51, 51, 51)),
    ],
)
def test_arrays_of_every_kind(array: np.ndarray, first: tuple[int, int, int]) -> None:
    assert to_rgb(from_array(array)).getpixel((0, 0)) == first


def test_strided_arrays_are_read_in_order() -> None:
    array = np.arange(35, dtype=np.uint8).reshape(5, 7)
    np.testing.assert_array_equal(np.asarray(from_array(array.T[::-1])), array.T[::-1])


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 5, 7), np.uint8), r"must be \[y, x\] or .* got shape \(3, 5, 7\)"),
        (np.zeros((5,), np.uint8), r"must be \[y, x\]"),
        (np.zeros((2, 2), np.int64), "must be bool, uint8, uint16 or floats, got int64"),
        (np.array([["a"]]), "must be bool, uint8, uint16 or floats"),
        (np.array([[0.0, 200.0]]), "between 0 and 1, got 0 to 200"),
        (np.array([[0.0, np.nan]]), "between 0 and 1"),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_array(array)


def test_values_between_the_percentiles_fill_the_gray_levels() -> None:
    values = 3 * np.arange(101, dtype=np.float32)[None, :, None] - 50
    pixels, text = draw_channels(values)
    assert pixels[0, [0, 2, 50, 98, 100], 0].tolist() == [0, 0, 128, 255, 255]
    assert text == "channel 0 in gray from its 2nd to its 98th percentile"
    values[0, 50] = np.nan
    assert draw_channels(values)[0][0, 50].tolist() == [0, 0, 0]
