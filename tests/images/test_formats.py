"""HEIC photos, orientation that only XMP states, PNG files that are written."""

import io

import numpy as np
import pytest
from PIL import Image

from visattn.images.formats import encode_overlay, encode_png, image_formats
from visattn.images.reader import ImageError, read_image, read_size

HEIF_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def corner(size: tuple[int, int] = (40, 64)) -> Image.Image:
    """A black image whose upper left quarter is white."""
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[: size[0] // 2, : size[1] // 2] = 255
    return Image.fromarray(pixels)


@pytest.mark.skipif("HEIF" not in image_formats(), reason="needs pip install 'visattn[heif]'")
@pytest.mark.parametrize(("orientation", "bright"), [(1, 0), (3, 3), (6, 1), (8, 2)])
def test_heic_is_read_upright(orientation: int, bright: int) -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x112] = orientation
    corner().save(file, "HEIF", exif=exif.tobytes(), quality=95)
    image = read_image(file.getvalue())
    shape = (40, 64) if orientation < 5 else (64, 40)
    assert image.size == shape == read_size(file.getvalue())
    corners = [int(image.pixels[y, x].mean()) for y in (5, -5) for x in (5, -5)]
    assert int(np.argmax(corners)) == bright
    assert sorted(corners)[-2] < 30 < 220 < max(corners)


def test_without_the_extra_a_heic_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visattn.images.formats.image_formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(ImageError, match=r"a HEIF image: .*pip install 'visattn\[heif\]'"):
        read_image(HEIF_HEAD)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orientation_that_only_xmp_states_is_ignored(form: str) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="6"/></x:xmpmeta>'
    file = io.BytesIO()
    if form == "PNG":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        corner().save(file, form, pnginfo=info)
    else:
        corner().save(file, form, xmp=xmp)
    with Image.open(io.BytesIO(file.getvalue())) as opened:
        assert opened.getexif()[0x112] == 6  # as Pillow does
    image = read_image(file.getvalue())
    assert image.size == (40, 64)


RANDOM = np.random.default_rng(0)
SIZE = (5, 7)


def test_pixels_are_read_back() -> None:
    gray = RANDOM.integers(0, 65536, SIZE, np.uint16)
    strided = RANDOM.integers(0, 256, (*SIZE, 6), np.uint8)[:, ::-1, ::2]
    for pixels, mode in ((gray, "I;16"), (strided, "RGB")):
        image = Image.open(io.BytesIO(encode_png(pixels)))
        assert image.mode == mode
        np.testing.assert_array_equal(np.array(image), pixels)


def test_a_large_overlay_is_smaller() -> None:
    image = Image.open(io.BytesIO(encode_overlay(np.zeros((4, 4096, 3), np.uint8))))
    assert image.size == (2048, 2)
