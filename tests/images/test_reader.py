"""The image reader: all file types, orientation, value ranges, limits and damaged files."""

import io
import os
import struct
import sys
import threading
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_zoo import (
    BAD,
    COLORS,
    PHOTO,
    TURNS,
    ZOO,
    frames,
    header,
    many_scans,
    png,
    saved,
    transparent_palette,
)
from PIL import Image

from visattn.images.reader import ImageError, LoadedImage, read_image, read_size


@pytest.mark.parametrize("name", ZOO)
def test_every_file_type_is_read_as_rgb_of_its_size(name: str) -> None:
    with Image.open(io.BytesIO(ZOO[name])) as image:
        width, height = image.size
    if name == "turned jpeg":
        width, height = height, width
    image = read_image(ZOO[name])
    assert image.pixels.dtype == np.uint8
    assert image.pixels.shape == (height, width, 3)
    assert image.pixels.flags.writeable  # torch.from_numpy takes it as it is
    if name in ("png", "lossless webp", "bmp", "tiff", "lzw tiff", "ppm"):
        np.testing.assert_array_equal(image.pixels, COLORS)


@pytest.mark.parametrize("code", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "AVIF", "JPEG"])
def test_exif_orientation_is_applied(form: str, code: int) -> None:
    upright = np.kron(COLORS[:3, :5] // 128 * 200, np.ones((8, 8, 1), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = code
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(form, {})
    stored = Image.fromarray(upright)
    stored = stored if code == 1 else stored.transpose(TURNS[code])
    content = saved(stored, form, exif=exif, **options)
    image = read_image(content)
    assert image.size == (24, 40)
    assert read_size(content) == (24, 40)
    middles = image.pixels[4::8, 4::8].astype(int)
    assert np.abs(middles - upright[4::8, 4::8]).max() <= (12 if form in ("JPEG", "AVIF") else 0)


def test_broken_exif_and_unknown_orientations_are_ignored() -> None:
    tags = [Image.Exif(), Image.Exif()]
    tags[0][0x0112], tags[1][0x0112] = 0, 9
    for exif in (*tags, b"Exif\0\0garbage!garbage"):
        np.testing.assert_array_equal(read_image(saved(PHOTO, "PNG", exif=exif)).pixels, COLORS)


def test_16_bit_values_are_scaled_and_not_clipped_in_any_byte_order_and_as_integers() -> None:
    deep = np.array([[0, 128, 129, 255, 256, 32768, 65535]], dtype=np.uint16)
    whole, raw = Image.fromarray(deep), deep.astype(">u2").tobytes()
    big, wide = Image.frombytes("I;16B", (7, 1), raw), Image.fromarray(deep.astype(np.int32))
    files = (saved(whole, "PNG"), saved(whole, "TIFF"), saved(big, "TIFF"), b"P5 7 1 65535\n" + raw)
    for image in (big, wide, *files):
        assert read_image(image).pixels[0, :, 0].tolist() == [0, 0, 1, 1, 1, 128, 255]


def test_32_bit_integers_and_floats_are_scaled_by_their_range() -> None:
    wide = Image.fromarray(np.array([[-1000, 0, 1_000_000]], dtype=np.int32))
    assert read_image(saved(wide, "TIFF")).pixels[0, :, 0].tolist() == [0, 0, 255]
    values = np.array([[-2.0, np.nan, 0.0, 2.0, np.inf]], dtype=np.float32)
    content = saved(Image.fromarray(values), "TIFF")
    assert read_image(content).pixels[0, :, 0].tolist() == [0, 0, 128, 255, 255]
    signalling = np.array([[0x7F800001, 0x3F800000, 0]], dtype=np.uint32).view(np.float32)
    content = saved(Image.fromarray(signalling), "TIFF")
    assert read_image(content).pixels[0, :, 0].tolist() == [0, 255, 0]
    same = saved(Image.fromarray(np.full((1, 2), 3.5, np.float32)), "TIFF")
    assert read_image(same).pixels[0, :, 0].tolist() == [0, 0]


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA", "La", "RGBa"])
def test_transparent_pixels_are_blended_with_white(mode: str) -> None:
    alpha = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    if mode == "PA":
        image = Image.new("P", (2, 1))
        image.putpalette([10, 10, 10])
    else:
        image = Image.new(mode.upper(), (2, 1), (10, 0) if "L" in mode else (10, 10, 10, 0))
    image.putalpha(alpha)
    image = image.convert(mode)
    assert image.mode == mode
    shown = read_image(image).pixels[0]
    assert shown[0].tolist() == [255, 255, 255]
    assert shown[1].tolist() == [10, 10, 10]


def test_transparent_palette_colors_are_blended_with_white() -> None:
    assert read_image(transparent_palette()).pixels[0].tolist() == [[255] * 3, [0] * 3]
    red = Image.fromarray(np.array([[[200, 10, 10], [1, 2, 3]]], dtype=np.uint8))
    content = saved(red, "PNG", transparency=(200, 10, 10))
    assert read_image(content).pixels[0].tolist() == [[255] * 3, [1, 2, 3]]
    gray = saved(Image.fromarray(np.array([[7, 9]], dtype=np.uint8)), "PNG", transparency=7)
    assert read_image(gray).pixels[0, :, 0].tolist() == [255, 9]
    rows = zlib.compress(b"\0" + struct.pack(">HH", 7, 65535))
    deep = png(header(2, 1, depth=16), (b"tRNS", struct.pack(">H", 7)), (b"IDAT", rows))
    assert read_image(deep).pixels[0, :, 0].tolist() == [255, 255]


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_first_frame_of_an_animation_is_read(form: str) -> None:
    red, green, blue = read_image(frames(form)).pixels[2, 3].tolist()
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize("name", BAD)
def test_unreadable_files_are_refused_with_a_reason(name: str) -> None:
    content, reason = BAD[name]
    with pytest.raises(ImageError, match=reason) as caught:
        read_image(content)
    assert isinstance(caught.value.__cause__, Exception)


def test_errors_name_the_file_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(ZOO["jpeg"][:-200])
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nothing.jpg")
    (tmp_path / "round.jpg").symlink_to(tmp_path / "round.jpg")
    for name, reason in (
        ("broken.jpg", r"broken\.jpg: .*truncated"),
        (".", "not a regular file"),
        ("pipe.jpg", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("gone.jpg", "no such file"),
        ("round.jpg", "Too many levels of symbolic links"),
        ("a\0.jpg", "null byte"),
        ("x" * 300, "File name too long"),
        ("a\x1b[2J.jpg", "no such file"),
    ):
        with pytest.raises(ImageError, match=reason) as caught:
            read_image(tmp_path / name)
        assert str(caught.value).isprintable()


def test_films_behind_a_jpeg_and_previews_in_it_are_no_scans() -> None:
    film = ZOO["jpeg"] + b"\xff\xda" * 1000  # what telephones append
    preview = b"\xff\xe1" + (2002).to_bytes(2) + b"\xff\xda" * 1000
    for content in (film, ZOO["jpeg"][:2] + preview + ZOO["jpeg"][2:]):
        assert read_image(content).size == (13, 19)
    assert read_image(many_scans(50)).size == (64, 64)


def test_limits_are_checked_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(ZOO["png"])
    for source in (path, ZOO["png"]):
        with pytest.raises(ImageError, match="19 x 13 pixels are more than 246: .*max_pixels=N"):
            read_image(source, max_pixels=246)
        assert read_image(source, max_pixels=247).size == (13, 19)
    limit = Image.MAX_IMAGE_PIXELS
    large = saved(Image.new("L", (16_000, 12_500)), "PNG", compress_level=1)
    with pytest.raises(ImageError, match="16000 x 12500 pixels are more than|exceeds limit"):
        read_image(large)
    assert read_size(large, max_pixels=200_000_000) == (12_500, 16_000)
    assert limit == Image.MAX_IMAGE_PIXELS
    os.truncate(path, 10**12)  # a hole: no disk is filled
    tracemalloc.start()
    with pytest.raises(ImageError, match="longer than 268,435,456 bytes"):
        read_image(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_path_image_bytes_and_array_have_equal_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(ZOO["png"])
    with Image.open(path) as lazy:
        for source in (path, str(path), ZOO["png"], PHOTO, lazy, COLORS):
            np.testing.assert_array_equal(read_image(source).pixels, COLORS)
    assert read_image(str(path)).name == str(path)
    image = read_image(COLORS)
    assert read_image(image) is image
    assert image.name == "image"


def test_image_and_array_inputs_are_not_modified() -> None:
    image, array = PHOTO.convert("RGBA"), COLORS.copy()
    image.getexif()[0x0112] = 6
    loaded = read_image(image)
    read_image(array).pixels[:] = 0
    assert loaded.size == (19, 13)
    assert (image.mode, image.size, image.getexif()[0x0112]) == ("RGBA", (19, 13), 6)
    np.testing.assert_array_equal(array, COLORS)


def test_other_sources_raise_a_type_error() -> None:
    read: Callable[..., LoadedImage] = read_image
    with pytest.raises(
        TypeError, match=r"must be a path, bytes, .* got int|Expected type: .*Image"
    ):
        read(3)


def test_warning_filters_are_unchanged() -> None:
    def read_all() -> None:
        for _ in range(50):
            read_image(ZOO["bmp"])

    before, interval = list(warnings.filters), sys.getswitchinterval()
    threads = [threading.Thread(target=read_all) for _ in range(4)]
    sys.setswitchinterval(1e-6)  # threads that take turns as often as they can
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert warnings.filters == before
