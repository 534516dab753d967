"""The one reader: a zoo of files, each made here, and whatever else a folder may hold."""

import io
import os
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from visattn.data.pictures import Picture, PictureError, find_pictures, read_picture, read_size

RNG = np.random.default_rng(5)
COLOURS = RNG.integers(0, 256, (13, 19, 3), dtype=np.uint8)  # [y x 3]
STORED = {  # EXIF code -> the upright pixels as they then lie in the file
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: np.rot90(upright, 2).swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of these chunks, each with its right checksum."""
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def header(width: int, height: int, *, depth: int = 8, kind: int = 0) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)


def frames(form: str) -> bytes:
    first, second = Image.new("RGB", (7, 5), (255, 0, 0)), Image.new("RGB", (7, 5), (0, 0, 255))
    options = {"lossless": True} if form == "WEBP" else {}
    return saved(first, form, save_all=True, append_images=[second], **options)


def transparent_palette() -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 10, 0, 0, 0])
    image.putpixel((1, 0), 1)
    return saved(image, "PNG", transparency=0)


PHOTO = Image.fromarray(COLOURS)
ZOO: dict[str, bytes] = {
    "jpeg": saved(PHOTO, "JPEG"),
    "progressive jpeg": saved(PHOTO, "JPEG", progressive=True),
    "cmyk jpeg": saved(PHOTO.convert("CMYK"), "JPEG"),
    "grey jpeg": saved(PHOTO.convert("L"), "JPEG"),
    "mpo": saved(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),
    "png": saved(PHOTO, "PNG"),
    "palette png": saved(PHOTO.quantize(16), "PNG"),
    "transparent palette png": transparent_palette(),
    "rgba png": saved(PHOTO.convert("RGBA"), "PNG"),
    "la png": saved(PHOTO.convert("LA"), "PNG"),
    "1-bit png": saved(PHOTO.convert("1"), "PNG"),
    "16-bit png": saved(Image.fromarray(np.full((5, 7), 777, np.uint16)), "PNG"),
    "animated png": frames("PNG"),
    "webp": saved(PHOTO, "WEBP"),
    "animated webp": frames("WEBP"),
    "gif": saved(PHOTO, "GIF"),
    "animated gif": frames("GIF"),
    "bmp": saved(PHOTO, "BMP"),
    "tiff": saved(PHOTO, "TIFF"),
    "lzw tiff": saved(PHOTO, "TIFF", compression="tiff_lzw"),
    "lab tiff": saved(Image.new("LAB", (7, 5), (128, 128, 128)), "TIFF"),
    "float tiff": saved(Image.fromarray(np.eye(7, dtype=np.float32)), "TIFF"),
    "animated tiff": frames("TIFF"),
    "ppm": saved(PHOTO, "PPM"),
    "16-bit ppm": b"P5 2 1 65535\n\x00\x00\xff\xff",
    "avif": saved(PHOTO, "AVIF"),
}


@pytest.mark.parametrize("name", ZOO)
def test_every_kind_of_file_becomes_rgb_of_its_size(name: str) -> None:
    with Image.open(io.BytesIO(ZOO[name])) as image:
        width, height = image.size
    picture = read_picture(ZOO[name])
    assert picture.pixels.dtype == np.uint8
    assert picture.pixels.shape == (height, width, 3)
    assert picture.pixels.flags.writeable  # torch.from_numpy takes it as it is
    assert picture.orientation == 1


@pytest.mark.parametrize("name", ["png", "bmp", "tiff", "lzw tiff", "ppm"])
def test_lossless_files_give_their_pixels(name: str) -> None:
    np.testing.assert_array_equal(read_picture(ZOO[name]).pixels, COLOURS)


@pytest.mark.parametrize("code", STORED)
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "AVIF", "JPEG"])
def test_a_turned_file_is_read_upright_and_its_code_kept(form: str, code: int) -> None:
    upright = np.kron(COLOURS[:3, :5] // 128 * 200, np.ones((8, 8, 1), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = code
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(form, {})
    content = saved(Image.fromarray(STORED[code](upright).copy()), form, exif=exif, **options)
    picture = read_picture(content)
    assert picture.orientation == code
    assert picture.size == (24, 40)
    assert read_size(content) == ((24, 40), code)
    middles = picture.pixels[4::8, 4::8].astype(int)
    assert np.abs(middles - upright[4::8, 4::8]).max() <= (12 if form in ("JPEG", "AVIF") else 0)


def test_a_compressed_tiff_is_turned_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.fromarray(STORED[6](COLOURS).copy())
    picture = read_picture(saved(stored, "TIFF", compression="tiff_lzw", exif=exif))
    np.testing.assert_array_equal(picture.pixels, COLOURS)
    assert picture.orientation == 6


@pytest.mark.parametrize("code", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_none(code: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = code
    picture = read_picture(saved(PHOTO, "PNG", exif=exif))
    np.testing.assert_array_equal(picture.pixels, COLOURS)
    assert picture.orientation == 1


def test_a_broken_exif_block_does_not_cost_the_picture() -> None:
    content = saved(PHOTO, "PNG", exif=b"Exif\0\0garbage!garbage")
    np.testing.assert_array_equal(read_picture(content).pixels, COLOURS)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bits_are_scaled_and_not_clipped(form: str) -> None:
    deep = np.array([[0, 128, 129, 255, 256, 32768, 65535]], dtype=np.uint16)
    grey = read_picture(saved(Image.fromarray(deep), form)).pixels[0, :, 0]
    assert grey.tolist() == [0, 0, 1, 1, 1, 128, 255]


def test_16_bits_are_scaled_in_either_order_of_bytes_and_as_integers() -> None:
    deep = np.array([[0, 257, 65535]], dtype=np.uint16)
    big = Image.frombytes("I;16B", (3, 1), deep.astype(">u2").tobytes())
    wide = Image.fromarray(deep.astype(np.int32))
    for image in (big, wide, saved(big, "TIFF"), b"P5 3 1 65535\n" + deep.astype(">u2").tobytes()):
        assert read_picture(image).pixels[0, :, 0].tolist() == [0, 1, 255]


def test_wider_integers_and_floats_are_scaled_by_their_range() -> None:
    wide = Image.fromarray(np.array([[-1000, 0, 1_000_000]], dtype=np.int32))
    assert read_picture(saved(wide, "TIFF")).pixels[0, :, 0].tolist() == [0, 0, 255]
    values = np.array([[-2.0, np.nan, 0.0, 2.0, np.inf]], dtype=np.float32)
    content = saved(Image.fromarray(values), "TIFF")
    assert read_picture(content).pixels[0, :, 0].tolist() == [0, 0, 128, 255, 255]
    signalling = np.array([[0x7F800001, 0x3F800000, 0]], dtype=np.uint32).view(np.float32)
    content = saved(Image.fromarray(signalling), "TIFF")
    assert read_picture(content).pixels[0, :, 0].tolist() == [0, 255, 0]
    same = saved(Image.fromarray(np.full((1, 2), 3.5, np.float32)), "TIFF")
    assert read_picture(same).pixels[0, :, 0].tolist() == [0, 0]


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA", "La", "RGBa"])
def test_transparent_pixels_show_white_paper(mode: str) -> None:
    alpha = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    if mode in ("La", "RGBa"):
        image = Image.new(mode[:-1] + "A", (2, 1), (10, 0) if mode == "La" else (10, 10, 10, 0))
        image.putalpha(alpha)
        image = image.convert(mode)
    elif mode == "PA":
        image = Image.new("P", (2, 1))
        image.putpalette([10, 10, 10])
        image.putalpha(alpha)
        assert image.mode == "PA"
    else:
        image = Image.new(mode, (2, 1), (10, 0) if mode == "LA" else (10, 10, 10, 0))
        image.putalpha(alpha)
    assert image.mode == mode
    shown = read_picture(image).pixels[0]
    assert shown[0].tolist() == [255, 255, 255]
    assert shown[1].tolist() == [10, 10, 10]


def test_colours_that_stand_for_transparency_show_white_paper() -> None:
    assert read_picture(transparent_palette()).pixels[0].tolist() == [[255] * 3, [0] * 3]
    red = Image.fromarray(np.array([[[200, 10, 10], [1, 2, 3]]], dtype=np.uint8))
    content = saved(red, "PNG", transparency=(200, 10, 10))
    assert read_picture(content).pixels[0].tolist() == [[255] * 3, [1, 2, 3]]
    grey = saved(Image.fromarray(np.array([[7, 9]], dtype=np.uint8)), "PNG", transparency=7)
    assert read_picture(grey).pixels[0, :, 0].tolist() == [255, 9]
    rows = zlib.compress(b"\0" + struct.pack(">HH", 7, 65535))
    deep = png(header(2, 1, depth=16), (b"tRNS", struct.pack(">H", 7)), (b"IDAT", rows))
    assert read_picture(deep).pixels[0, :, 0].tolist() == [255, 255]


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_gives_its_first_frame(form: str) -> None:
    assert read_picture(frames(form)).pixels[2, 3].tolist() == [255, 0, 0]


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "html": (b"<!doctype html><title>404</title>", "not a picture of a known format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture of a known format"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "not a picture of a known format"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
    "truncated jpeg": (ZOO["jpeg"][:-200], "truncated"),
    "truncated header": (ZOO["jpeg"][:300], "Truncated File Read"),
    "truncated png": (ZOO["png"][:-200], "picture: "),
    "no rows": (png(header(10, 10), (b"IDAT", zlib.compress(b""))), "truncated"),
    "wrong checksum": (ZOO["png"][:29] + b"\0\0\0\0" + ZOO["png"][33:], "picture: "),
    "no width": (png(header(0, 10)), "picture: "),
    "20000 x 20000": (png(header(20000, 20000)), "exceeds limit|more than max_pixels"),
    "13000 x 13000": (png(header(13000, 13000)), "13000 x 13000 pixels are more than max_pixels"),
    "8001 x 8000": (png(header(8001, 8000)), "more than max_pixels, 64,000,000"),
    "a strip": (png(header(101, 1)), "101 x 1 pixels: longer than 100 times its short side"),
    "text bomb": (
        png(header(1, 1), (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 1))),
        "Decompressed data too large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_refused_with_its_reason(name: str) -> None:
    content, reason = BAD[name]
    with pytest.raises(PictureError, match=reason) as caught:
        read_picture(content)
    assert isinstance(caught.value.__cause__, Exception)


def test_the_head_of_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="no such file"):
        read_size(tmp_path / "a.png")
    with pytest.raises(PictureError, match="not a picture"):
        read_size(b"GIF89")


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(ZOO["jpeg"][:-200])
    with pytest.raises(PictureError, match=r"broken\.jpg: .*truncated"):
        read_picture(path)
    with pytest.raises(PictureError, match=r"nowhere\.jpg: no such file"):
        read_picture(tmp_path / "nowhere.jpg")
    with pytest.raises(PictureError, match="not a regular file"):
        read_picture(tmp_path)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", "/dev/zero"):
        with pytest.raises(PictureError, match="not a regular file"):
            read_picture(path)


def test_limits_hold_before_anything_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(ZOO["png"])
    for source in (path, ZOO["png"]):
        with pytest.raises(PictureError, match="longer than max_bytes, 100 bytes"):
            read_picture(source, max_bytes=100)
        with pytest.raises(PictureError, match="19 x 13 pixels are more than max_pixels, 246"):
            read_picture(source, max_pixels=246)
        assert read_picture(source, max_pixels=247).size == (13, 19)


def test_a_path_an_image_bytes_and_an_array_give_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(ZOO["png"])
    with Image.open(path) as lazy:
        for source in (path, str(path), ZOO["png"], PHOTO, lazy, COLOURS):
            np.testing.assert_array_equal(read_picture(source).pixels, COLOURS)
    assert read_picture(str(path)).name == str(path)
    picture = read_picture(COLOURS)
    assert read_picture(picture) is picture
    assert picture.name == "picture"


def test_an_image_and_an_array_stay_as_they_were() -> None:
    image, array = PHOTO.convert("RGBA"), COLOURS.copy()
    image.getexif()[0x0112] = 6
    picture = read_picture(image)
    read_picture(array).pixels[:] = 0
    assert picture.orientation == 6
    assert picture.size == (19, 13)
    assert (image.mode, image.size, image.getexif()[0x0112]) == ("RGBA", (19, 13), 6)
    np.testing.assert_array_equal(array, COLOURS)


def test_another_kind_of_source_is_a_type_error() -> None:
    read: Callable[..., Picture] = read_picture
    with pytest.raises(
        TypeError, match=r"must be a path, bytes, .* got int|Expected type: .*Image"
    ):
        read(3)


def test_reading_leaves_the_warning_filters_alone() -> None:
    def read_all() -> None:
        for _ in range(50):
            read_picture(ZOO["bmp"])

    before, interval = list(warnings.filters), sys.getswitchinterval()
    threads = [threading.Thread(target=read_all) for _ in range(4)]
    sys.setswitchinterval(1e-6)  # threads that take turns as often as they can
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert warnings.filters == before


def test_folders_are_searched_and_files_taken_as_given(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", ".hidden.png", "notes.txt", "sub/c.webp", ".git/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_pictures([tmp_path])
    assert found == [tmp_path / "a.png", tmp_path / "b.JPG", tmp_path / "sub" / "c.webp"]
    assert find_pictures(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    assert find_pictures([tmp_path / "b.JPG", str(tmp_path)])[0] == tmp_path / "b.JPG"
    assert len(find_pictures([tmp_path, tmp_path])) == 3


def test_finding_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no picture in .*; looked for .*\.jpg"):
        find_pictures([tmp_path])
    with pytest.raises(FileNotFoundError, match="no picture in an empty list"):
        find_pictures([])
    with pytest.raises(FileNotFoundError, match="gone does not exist; give picture files"):
        find_pictures([tmp_path, tmp_path / "gone"])


ACTIONS = st.sampled_from(["set", "cut", "insert", "copy"])
PIECES = st.binary(min_size=1, max_size=9)
EDITS = st.lists(st.tuples(ACTIONS, st.floats(0, 1), PIECES), min_size=1, max_size=8)


def edited(content: bytes, edits: list[tuple[str, float, bytes]]) -> bytes:
    for action, share, new in edits:
        at = int(share * len(content))
        before, after = content[:at], content[at:]
        content = {
            "set": before + new + after[len(new) :],
            "cut": before + after[len(new) * 7 :],
            "insert": before + new + after,
            "copy": before + after[: len(new) * 5] + after,
        }[action]
    return content


def read_or_refused(content: bytes) -> Picture | PictureError:
    try:
        return read_picture(content, max_pixels=1_000_000)
    except PictureError as error:
        return error


@given(edits=EDITS)
def test_damaged_files_give_a_picture_or_our_error(edits: list[tuple[str, float, bytes]]) -> None:
    for content in ZOO.values():
        result = read_or_refused(edited(content, edits))
        assert isinstance(result, PictureError) or result.pixels.shape[2] == 3


@given(start=st.sampled_from([content[:12] for content in ZOO.values()]), rest=st.binary())
def test_random_bytes_give_a_picture_or_our_error(start: bytes, rest: bytes) -> None:
    for content in (rest, start + rest):
        assert isinstance(read_or_refused(content), (Picture, PictureError))


def test_text_chunks_are_no_matter() -> None:
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "x" * 1000, zip=True)
    np.testing.assert_array_equal(read_picture(saved(PHOTO, "PNG", pnginfo=notes)).pixels, COLOURS)
