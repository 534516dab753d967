"""Integrity checks that Pillow lacks: JPEG scan bombs and truncated PNG files."""

import re
import zlib
from collections.abc import Iterator

# After FF, 00 is data and D0 to D7 are restarts within a scan: neither begins a segment.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]", re.DOTALL)
_EMPTY_MARKERS = {0x01, 0xD8}  # markers without content
_SCAN = 0xDA
_END = 0xD9


def count_jpeg_scans(content: bytes) -> int:
    """Return the number of scans of the first image in a JPEG file.

    A progressive JPEG of a few kilobytes can demand thousands of scans. Thumbnails inside the
    header are not counted, nor is anything after the end of the image.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "jpeg")
        >>> count_jpeg_scans(file.getvalue())
        1

    Source:
        ITU-T T.81, annex B.
    """
    scans = 0
    offset = 2
    while match := _MARKER.search(content, offset):
        marker = content[match.end() - 1]
        offset = match.end()
        if marker == _END:
            break
        scans += marker == _SCAN
        if marker not in _EMPTY_MARKERS:
            offset += max(2, int.from_bytes(content[offset : offset + 2], "big"))
    return scans


_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # PNG color type -> channels
_ADAM7_PASSES = (  # top, left, row step, column step
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)
_CHUNK_BYTES = 2**20  # decompressed at once


def png_rows_missing(content: bytes) -> bool:
    """Return whether the compressed rows of a PNG end before its last row.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "png")
        >>> png_rows_missing(file.getvalue())
        False

    Source:
        ISO/IEC 15948 (PNG), sections 8 and 11.2.
    """
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    depth = content[24]
    color_type = content[25]
    interlaced = content[28]
    bits = depth * _CHANNELS.get(color_type, 1)
    # Each row begins with a byte that names its filter. A pass without columns has no rows at all.
    expected = sum(
        y * (1 + (x * bits + 7) // 8)
        for y, x in _pass_sizes(height, width, interlaced=bool(interlaced))
        if x
    )
    return expected > sum(_decompressed_lengths(content))


def _pass_sizes(height: int, width: int, *, interlaced: bool) -> Iterator[tuple[int, int]]:
    """Yield height and width of each interlacing pass."""
    passes = _ADAM7_PASSES if interlaced else ((0, 0, 1, 1),)
    for top, left, row_step, column_step in passes:
        yield max(0, -((top - height) // row_step)), max(0, -((left - width) // column_step))


def _decompressed_lengths(content: bytes) -> Iterator[int]:
    """Yield the lengths of the decompressed parts of the image data, in small steps."""
    # After 8 bytes of signature each chunk is length, kind, content and CRC: 12 bytes and content.
    decompressor = zlib.decompressobj()
    offset = 8
    while offset + 8 <= len(content):
        length = int.from_bytes(content[offset : offset + 4], "big")
        kind = content[offset + 4 : offset + 8]
        if kind == b"IDAT":
            compressed = content[offset + 8 : offset + 8 + length]
            while compressed:
                yield len(decompressor.decompress(compressed, _CHUNK_BYTES))
                compressed = decompressor.unconsumed_tail
        offset += length + 12
