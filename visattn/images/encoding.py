"""PNG files of images."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # NumPy and Pillow are imported to encode an image, not for help of a command
    import numpy as np

_LONGEST_OVERLAY = 2048  # pixels; a photo of 12 megapixels makes 3 instead of 11 MB
_LEVEL = 1  # of compression: level 6 takes several times as long, for files a tenth smaller


def encode_png(pixels: "np.ndarray", palette: bytes | None = None) -> bytes:
    """Return an image as PNG.

    Args:
        pixels: The image: gray with 8 or 16 bits, RGB or RGBA with 8.
        palette: Colors of the 256 gray levels, which then are indices: the numbers stay the same.

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
