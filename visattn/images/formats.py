"""Formats of image files: those that are read, and others that lie beside photos."""

import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from visattn.io.messages import format_names
from visattn.io.safe_text import printable_name

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
)  # fmt: skip
_HEIF_SUFFIXES = (".heic", ".heif", ".hif")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_OTHER_SUFFIXES = (  # of images that are not read: raw data of cameras, editors, textures
    ".3fr", ".arw", ".cr2", ".cr3", ".dng", ".erf", ".kdc", ".mrw", ".nef", ".nrw", ".orf",
    ".pef", ".raf", ".raw", ".rw2", ".sr2", ".srw", ".x3f", ".dds", ".eps", ".exr", ".hdr",
    ".ico", ".jp2", ".jxl", ".pcx", ".psd", ".svg", ".tga", ".xcf",
)  # fmt: skip
VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
HEIF_ADVICE = "pip install 'visattn[heif]'"


@cache
def image_formats() -> tuple[str, ...]:
    """Return the formats that are read, as Pillow names them; HEIF if pillow-heif is installed."""
    if not has_heif():
        return _FORMATS
    library: Any = importlib.import_module("pillow_heif")
    library.register_heif_opener()
    return (*_FORMATS, "HEIF")


@cache
def image_suffixes() -> tuple[str, ...]:
    """Return the suffixes of files that are read.

    Example:
        >>> ".jpg" in image_suffixes(), ".nef" in image_suffixes()
        (True, False)
    """
    return (*_SUFFIXES, *_HEIF_SUFFIXES) if has_heif() else _SUFFIXES


def has_heif() -> bool:
    """Whether HEIC and HEIF files can be read: by the extra `heif`, which is pillow-heif."""
    return importlib.util.find_spec("pillow_heif") is not None


def is_video(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is named like a video.

    Example:
        >>> is_video("clip.MP4"), is_video("photo.jpg")
        (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def is_heif(content: bytes) -> bool:
    r"""Return whether an image file is HEIF, as phones write it.

    Example:
        >>> is_heif(b"\0\0\0\x18ftypheic....")
        True
    """
    return content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS


def is_other_image(path: Path) -> bool:
    """Return whether a file is named like an image of a format that is not read.

    Example:
        >>> is_other_image(Path("DSC_1.NEF")), is_other_image(Path("notes.txt"))
        (True, False)
    """
    suffix = path.suffix.lower()
    return suffix in (*_OTHER_SUFFIXES, *_HEIF_SUFFIXES) and suffix not in image_suffixes()


def describe_skipped(files: Sequence[Path]) -> str:
    """Return a sentence about images that a search for images has skipped; "" for none.

    Example:
        >>> describe_skipped([Path("a/1.NEF"), Path("a/2.NEF"), Path("3.CR2")])
        'skipped 3 images of other formats, 2 .nef and 1 .cr2 (1.NEF, 2.NEF, 3.CR2): \
convert them to JPEG or PNG'
    """
    if not files:
        return ""
    counts = Counter(file.suffix.lower() for file in files)
    kinds = format_names([f"{count} {suffix}" for suffix, count in counts.most_common()], 9)
    kinds = " and ".join(kinds.rsplit(", ", 1))
    names = format_names([printable_name(file.name) for file in files])
    advice = f"{HEIF_ADVICE} for HEIC, or " if {*counts} & {*_HEIF_SUFFIXES} else ""
    noun = "image of another format" if len(files) == 1 else "images of other formats"
    return f"skipped {len(files):,} {noun}, {kinds} ({names}): {advice}convert them to JPEG or PNG"
