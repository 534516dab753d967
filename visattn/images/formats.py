"""Supported image and video formats, and PNG encoding."""

import importlib
import importlib.util
import io
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # NumPy and Pillow are imported to encode images, not for --help
    import numpy as np

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_PIXELS = 64_000_000  # a file of kilobytes may declare gigabytes
IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif", ".heic", ".heif", ".hif",
)  # fmt: skip
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


_LONGEST_OVERLAY = 2048  # pixels; 3 instead of 11 MB for a photo of 12 megapixels
_LEVEL = 1  # of compression: level 6 takes several times as long, for files a tenth smaller


@cache
def image_formats() -> tuple[str, ...]:
    """Return Pillow's names of the supported formats; HEIF if pillow-heif is installed."""
    if importlib.util.find_spec("pillow_heif") is None:
        return _FORMATS
    library: Any = importlib.import_module("pillow_heif")
    library.register_heif_opener()
    return (*_FORMATS, "HEIF")


def unknown_format(content: bytes) -> str:
    r"""Return why the content of a file cannot be read as an image.

    Example:
        >>> unknown_format(b"GIF")
        'not an image of a known format (JPEG, PNG, WEBP, GIF, BMP, TIFF, PPM, AVIF...)'
    """
    formats = image_formats()
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS and "HEIF" not in formats:
        return "a HEIF image: to read it, pip install 'visattn[heif]', or convert it to JPEG"
    return f"not an image of a known format ({', '.join(formats)})"


def is_video(path: str | os.PathLike[str]) -> bool:
    """Return whether a file has the suffix of a video.

    Example:
        >>> is_video("clip.MP4"), is_video("photo.jpg")
        (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def encode_png(pixels: "np.ndarray", palette: bytes | None = None) -> bytes:
    """Encode an image as PNG.

    Args:
        pixels: The image: gray with 8 or 16 bits, RGB or RGBA with 8.
        palette: Colors of the 256 gray levels, which become palette indices of the same value.

    Example:
        >>> encode_png(np.zeros((2, 3), np.uint16))[1:4]
        b'PNG'
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    if palette is not None:
        image.putpalette(palette)
    buffer = io.BytesIO()
    image.save(buffer, "png", compress_level=_LEVEL)
    return buffer.getvalue()


def encode_overlay(pixels: "np.ndarray") -> bytes:
    """Encode an overlay for viewing as PNG, downsampled if a side exceeds 2048 pixels.

    Maps and masks are saved in other files, at their own resolution.

    Example:
        >>> png = encode_overlay(np.zeros((1000, 4096, 3), np.uint8))
        >>> [int.from_bytes(png[start : start + 4], "big") for start in (16, 20)]
        [2048, 500]
    """
    if max(pixels.shape[:2]) <= _LONGEST_OVERLAY:
        return encode_png(pixels)
    import numpy as np
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((_LONGEST_OVERLAY, _LONGEST_OVERLAY), Image.Resampling.LANCZOS)
    return encode_png(np.asarray(image))
