"""How often a JPEG goes over its image: a few kilobytes can ask for that thousands of times."""

import re
import zlib
from collections.abc import Iterator

_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]", re.DOTALL)
_ALONE = {0x01, 0xD8}  # markers without content
_SCAN, _END = 0xDA, 0xD9


def scan_count(content: bytes) -> int:
    """Return the number of scans of the first image in the content of a JPEG.

    Previews inside the head are not counted, nor is what follows the end of the image: other
    images, or a film.

    Args:
        content: From the first byte on; it may be damaged.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "jpeg")
        >>> scan_count(file.getvalue())
        1

    Source:
        ITU-T T.81, annex B.
    """
    scans, at = 0, 2
    while found := _MARKER.search(content, at):
        kind, at = content[found.end() - 1], found.end()
        if kind == _END:
            break
        scans += kind == _SCAN
        if kind not in _ALONE:
            at += max(2, int.from_bytes(content[at : at + 2], "big"))
    return scans


_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # kind of color -> numbers of a pixel
_PASSES = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)
_STEP = 2**20  # bytes that are unpacked at once


def rows_missing(content: bytes) -> bool:
    """Return whether the packed rows of a PNG end before its last row.

    Args:
        content: Of a file that Pillow could read.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "png")
        >>> rows_missing(file.getvalue())
        False

    Source:
        ISO/IEC 15948 (PNG), sections 8 and 11.2.
    """
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    depth, kind, interlaced = content[24], content[25], content[28]
    bits = depth * _CHANNELS.get(kind, 1)
    wanted = sum(
        y * (1 + (x * bits + 7) // 8)
        for y, x in _sizes(height, width, interlaced=bool(interlaced))
        if x
    )
    return wanted > sum(_lengths(content))


def _sizes(height: int, width: int, *, interlaced: bool) -> Iterator[tuple[int, int]]:
    """Yield height and width of each pass over the image."""
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    for top, left, down, right in passes:
        yield max(0, -((top - height) // down)), max(0, -((left - width) // right))


def _lengths(content: bytes) -> Iterator[int]:
    """Yield the lengths of what the parts of the packed rows unpack to, a little at a time."""
    unpacking, at = zlib.decompressobj(), 8
    while at + 8 <= len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        if kind == b"IDAT":
            packed = content[at + 8 : at + 8 + length]
            while packed:
                yield len(unpacking.decompress(packed, _STEP))
                packed = unpacking.unconsumed_tail
        at += length + 12
