"""Resizing of images and attention maps for drawing."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image


def resize_image(
    image: UInt8[np.ndarray, "y x 3"], size: tuple[int, int]
) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return an image at another size.

    Lanczos resampling; nearest neighbor where the image is enlarged three times or more.

    Args:
        image: RGB.
        size: Height and width.

    Example:
        >>> resize_image(np.zeros((480, 640, 3), dtype=np.uint8), (120, 160)).shape
        (120, 160, 3)
    """
    height, width = size
    if (height, width) == image.shape[:2]:
        return image
    if min(height / image.shape[0], width / image.shape[1]) >= 3:
        return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.NEAREST))
    lanczos = Image.Resampling.LANCZOS
    return np.array(Image.fromarray(image).resize((width, height), lanczos, reducing_gap=3.0))


def resize_map(
    values: Float[np.ndarray, "y x"], size: tuple[int, int]
) -> Float[np.ndarray, "y2 x2"]:
    """Return a map at another size: bilinear over finite values; NaN stays NaN.

    Args:
        values: The map; NaN outside the model's input.
        size: Height and width.

    Example:
        >>> resize_map(np.array([[1.0, 3.0, np.nan, np.nan]]), (1, 2))
        array([[ 2., nan]], dtype=float32)
    """
    if values.shape == size:
        return values
    height, width = size
    valid = ~np.isnan(values)
    masked = Image.fromarray(np.where(valid, values, 0).astype(np.float32))
    total = masked.resize((width, height), Image.Resampling.BILINEAR)
    mask = Image.fromarray(valid.astype(np.float32))
    weight = np.asarray(mask.resize((width, height), Image.Resampling.BILINEAR))
    kept = weight >= 0.5
    return np.where(kept, np.asarray(total) / np.where(kept, weight, 1), np.float32(np.nan))
