"""PNG encoding of images."""

import struct
from typing import TYPE_CHECKING

from isal import isal_zlib

if TYPE_CHECKING:  # imported when an image is encoded, not for the help of a command
    import numpy as np

_LONGEST_OVERLAY = 2048  # pixels; a photo of 12 megapixels makes 3 instead of 11 MB
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # by the number of channels: gray, RGB, RGBA
_INDEXED = 3
# Each row minus the one above, compressed by ISA-L in a sixth to a tenth of the time of zlib at
# level 1, to the same size. Encoders that choose a filter for each row, as Pillow and libpng, make
# files up to 9 % smaller.
_NO_FILTER, _UP = 0, 2
_LEVEL = 2  # of 0 to 3


def encode_png(pixels: "np.ndarray", palette: bytes | None = None) -> bytes:
    """Return an image as PNG.

    Args:
        pixels: The image: gray with 8 or 16 bits, RGB or RGBA with 8.
        palette: Colors of the 256 gray levels, which then are indices: the numbers stay the same.

    Raises:
        ValueError: If the image is of another kind.

    Example:
        >>> encode_png(np.zeros((2, 3), np.uint16))[1:4]
        b'PNG'
    """
    import numpy as np

    height, width, channels = (*pixels.shape, 1)[:3]
    bits = 8 * pixels.dtype.itemsize
    kinds = {(8, 1), (16, 1), (8, 3), (8, 4)}
    if pixels.dtype.kind != "u" or (bits, channels) not in kinds or not pixels.size:
        raise ValueError(
            "an image must be gray of uint8 or uint16, or RGB or RGBA of uint8, with a pixel at "
            f"least, got {pixels.shape} of {pixels.dtype}"
        )
    big_endian = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">"))
    rows = big_endian.view(np.uint8).reshape(height, -1)
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    if palette is None:
        filtered[:, 0] = _UP
        filtered[0, 1:] = rows[0]
        np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    else:
        filtered[:, 0] = _NO_FILTER
        filtered[:, 1:] = rows
    data = isal_zlib.compress(filtered.data, _LEVEL)
    kind = _COLOR_TYPES[channels] if palette is None else _INDEXED
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    colors = [] if palette is None else [_chunk(b"PLTE", palette)]
    chunks = [_chunk(b"IHDR", header), *colors, _chunk(b"IDAT", data), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG file: its length, kind, content and checksum."""
    checksum = isal_zlib.crc32(content, isal_zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def encode_overlay(pixels: "np.ndarray") -> bytes:
    """Return a photo that was drawn on, for the eye, as PNG: shrunk if a side has over 2048 pixels.

    What is measured lies in other files: maps at their own resolution, masks of the photo.

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
