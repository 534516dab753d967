"""Images and maps at another size, for drawing."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image


def resized_image(
    image: UInt8[np.ndarray, "y x 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return an image at another size: smooth, but in squares where its pixels grow large.

    Example:
        >>> resized_image(np.zeros((480, 640, 3), dtype=np.uint8), (120, 160)).shape
        (120, 160, 3)
    """
    height, width = size
    if (height, width) == image.shape[:2]:
        return image
    if min(height / image.shape[0], width / image.shape[1]) >= 3:
        return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST))
    lanczos = Image.Resampling.LANCZOS
    return np.array(Image.fromarray(image).resize((width, height), lanczos, reducing_gap=3.0))


def resized_map(
    values: Float[np.ndarray, "y x"], size: tuple[int, int]
) -> Float[np.ndarray, "y2 x2"]:
    """Return a map at another size, averaged or interpolated over what was seen; NaN stays NaN.

    Example:
        >>> resized_map(np.array([[1.0, 3.0, np.nan, np.nan]]), (1, 2))
        array([[ 2., nan]], dtype=float32)
    """
    if values.shape == size:
        return values
    height, width = size
    seen = ~np.isnan(values)
    weighted = Image.fromarray(np.where(seen, values, 0).astype(np.float32))
    total = weighted.resize((width, height), Image.Resampling.BILINEAR)
    counted = Image.fromarray(seen.astype(np.float32))
    share = np.asarray(counted.resize((width, height), Image.Resampling.BILINEAR))
    visible = share >= 0.5
    return np.where(visible, np.asarray(total) / np.where(visible, share, 1), np.float32(np.nan))
