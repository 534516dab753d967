"""HEIC photos, orientation that only XMP states, and images that folders hold beside photos."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visattn.commands.files import find_input_images
from visattn.images import formats
from visattn.images.formats import has_heif
from visattn.images.reader import ImageError, find_images, read_image, read_size

HEIF_HEAD = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"


def corner(size: tuple[int, int] = (40, 64)) -> Image.Image:
    """A black image whose upper left quarter is white."""
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[: size[0] // 2, : size[1] // 2] = 255
    return Image.fromarray(pixels)


@pytest.mark.skipif(not has_heif(), reason="needs pip install 'visattn[heif]'")
@pytest.mark.parametrize(("orientation", "bright"), [(1, 0), (3, 3), (6, 1), (8, 2)])
def test_heic_is_read_upright(orientation: int, bright: int) -> None:
    formats.image_formats()
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x112] = orientation
    corner().save(file, "HEIF", exif=exif.tobytes(), quality=95)
    image = read_image(file.getvalue())
    shape = (40, 64) if orientation < 5 else (64, 40)
    assert image.size == shape == read_size(file.getvalue())[0]
    assert image.orientation == orientation
    corners = [int(image.pixels[y, x].mean()) for y in (5, -5) for x in (5, -5)]
    assert int(np.argmax(corners)) == bright
    assert sorted(corners)[-2] < 30 < 220 < max(corners)


def test_without_the_extra_a_heic_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visattn.images.reader.has_heif", lambda: False)
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
    assert (image.size, image.orientation) == ((40, 64), 1)


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).write_bytes(HEIF_HEAD)
    corner().save(path / "cat.png")
    return path


def test_folders_say_what_they_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    formats.image_suffixes.cache_clear()
    monkeypatch.setattr(formats, "has_heif", lambda: False)
    folder_of(tmp_path, "IMG_1.HEIC", "IMG_2.NEF", "IMG_3.nef", "\x1b[2J.heic", "notes.txt")
    with pytest.warns(UserWarning, match="skipped 4 images of other formats"):
        assert find_images(tmp_path) == [tmp_path / "cat.png"]
    assert find_input_images([tmp_path], None, []) == [tmp_path / "cat.png"]
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "2 .heic and 2 .nef" in message
    assert "IMG_1.HEIC, IMG_2.NEF" in message or "IMG_1.HEIC" in message
    assert "pip install 'visattn[heif]' for HEIC" in message
    assert "\x1b" not in message
    (tmp_path / "cat.png").unlink()
    with pytest.raises(FileNotFoundError, match="no image in .*; skipped 4 images"):
        find_images(tmp_path)
    formats.image_suffixes.cache_clear()


def test_folders_without_other_images_are_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(tmp_path, "notes.txt", "cat.json")
    assert find_input_images([tmp_path], None, []) == [tmp_path / "cat.png"]
    assert capsys.readouterr().err == ""
