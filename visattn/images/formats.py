"""Formats of image files that are read."""

import importlib
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_PIXELS = 64_000_000  # a file of kilobytes may announce gigabytes
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".heic", ".heif", ".hif",
)  # fmt: skip
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


@cache
def image_formats() -> tuple[str, ...]:
    """Return the formats that are read, as Pillow names them; HEIF if pillow-heif is installed."""
    if importlib.util.find_spec("pillow_heif") is None:
        return _FORMATS
    library: Any = importlib.import_module("pillow_heif")
    library.register_heif_opener()
    return (*_FORMATS, "HEIF")


def unknown_format(content: bytes) -> str:
    r"""Return why the content of a file is no image.

    Example:
        >>> unknown_format(b"GIF")
        'not an image of a known format (JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, AVIF...)'
    """
    formats = image_formats()
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS and "HEIF" not in formats:
        return "a HEIF image: to read it, pip install 'visattn[heif]', or convert it to JPEG"
    return f"not an image of a known format ({', '.join(formats)})"


def is_video(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is named like a video.

    Example:
        >>> is_video("clip.MP4"), is_video("photo.jpg")
        (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES
