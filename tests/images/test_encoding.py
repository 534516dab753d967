"""PNG files of images."""

import io

import numpy as np
from PIL import Image

from visattn.images.formats import encode_overlay, encode_png

RANDOM = np.random.default_rng(0)
SIZE = (5, 7)


def test_pixels_are_read_back() -> None:
    gray = RANDOM.integers(0, 65536, SIZE, np.uint16)
    strided = RANDOM.integers(0, 256, (*SIZE, 6), np.uint8)[:, ::-1, ::2]
    for pixels, mode in ((gray, "I;16"), (strided, "RGB")):
        image = Image.open(io.BytesIO(encode_png(pixels)))
        assert image.mode == mode
        np.testing.assert_array_equal(np.array(image), pixels)


def test_numbers_of_a_palette_stay_and_have_its_colors() -> None:
    numbers = RANDOM.integers(0, 256, SIZE, np.uint8)
    palette = RANDOM.integers(0, 256, (256, 3), np.uint8)
    image = Image.open(io.BytesIO(encode_png(numbers, palette.tobytes())))
    assert image.mode == "P"
    np.testing.assert_array_equal(np.array(image), numbers)
    np.testing.assert_array_equal(np.array(image.convert("RGB")), palette[numbers])


def test_a_large_overlay_is_smaller() -> None:
    image = Image.open(io.BytesIO(encode_overlay(np.zeros((4, 4096, 3), np.uint8))))
    assert image.size == (2048, 2)
