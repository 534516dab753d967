"""Figures of image crops: the outline of a crop on its image, and panels of crops."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.maps.resize import resize_image

Color = tuple[int, int, int]
_SUPERSAMPLING = 4  # for antialiased lines
_GAP = 6


def draw_crop_frame(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    *,
    color: Color = (255, 196, 0),
    width: float = 2.0,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the outline of a crop, which may be any quadrilateral.

    A dot marks the top left corner of the crop, which shows its orientation.

    Args:
        image: RGB.
        corners: Corners of the crop in order around it, the top left first, as (x, y) in pixels
            of the image; they may be outside the image.
        color: Color of the line, RGB; a darker, wider line below makes it visible on any
            background.
        width: Width of the line in pixels.

    Raises:
        ValueError: If a corner is not finite, or the width is not positive.

    Example:
        >>> whole = np.array([[1, 1], [9, 1], [9, 9], [1, 9]], dtype=float)
        >>> drawn = draw_crop_frame(np.zeros((10, 10, 3), np.uint8), whole, width=1)
        >>> bool(drawn[1, 5, 0] > 60), int(drawn[5, 5, 0])
        (True, 0)
    """
    if not np.isfinite(corners).all() or width <= 0:
        raise ValueError(
            f"corners must be finite and width above 0, got {corners.tolist()} and {width}"
        )
    dark: Color = (color[0] // 5, color[1] // 5, color[2] // 5)
    drawn = _draw_outline(image, corners, dark, width + 2, 1.5 * width + 1)
    return _draw_outline(drawn, corners, color, width, 1.5 * width)


def crop_panel(
    images: UInt8[np.ndarray, "n y x 3"],
    corners: Float[np.ndarray, "n 4 2"],
    crops: UInt8[np.ndarray, "n y2 x2 3"],
    *,
    height: int = 96,
    columns: int = 8,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Return a figure of images with the outlines of their crops, and each crop below its image.

    Args:
        images: RGB.
        corners: Corners of each crop, as for `draw_crop_frame`.
        crops: The crops.
        height: Height of an image in the figure, in pixels.
        columns: Number of images in a row.

    Raises:
        ValueError: If there is no image.

    Example:
        >>> blank = np.zeros((3, 14, 14, 3), np.uint8)
        >>> corners = np.tile(np.array([[1.0, 1], [9, 1], [9, 9], [1, 9]]), (3, 1, 1))
        >>> crop_panel(blank, corners, blank, height=28, columns=2).shape
        (142, 74, 3)
    """
    if not len(images):
        raise ValueError("a panel needs at least one image, got none")
    count, image_height, image_width = len(images), images.shape[1], images.shape[2]
    scale = height / image_height
    size = (height, max(1, round(image_width * scale)))
    columns = min(columns, count)
    rows = -(-count // columns)
    cell = (2 * height + 2 * _GAP, size[1] + _GAP)
    panel = np.full((rows * cell[0] + _GAP, columns * cell[1] + _GAP, 3), 255, np.uint8)
    for index in range(count):
        top = _GAP + index // columns * cell[0]
        left = _GAP + index % columns * cell[1]
        framed = draw_crop_frame(resize_image(images[index], size), corners[index] * scale)
        panel[top : top + size[0], left : left + size[1]] = framed
        crop_top = top + size[0] + _GAP // 2
        panel[crop_top : crop_top + size[0], left : left + size[1]] = resize_image(
            crops[index], size
        )
    return panel


def _draw_outline(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    color: Color,
    width: float,
    dot_radius: float,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a closed polygon and a dot at its first corner."""
    rows, columns = image.shape[:2]
    mask = Image.new("L", (columns * _SUPERSAMPLING, rows * _SUPERSAMPLING))
    pen = ImageDraw.Draw(mask)
    limit = 8.0 * max(rows, columns)
    points = [tuple(point) for point in (np.clip(corners, -limit, limit) * _SUPERSAMPLING).tolist()]
    pen.line([*points, *points[:2]], fill=255, width=round(width * _SUPERSAMPLING), joint="curve")
    (x, y), radius = points[0], dot_radius * _SUPERSAMPLING
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    alpha = np.asarray(mask.reduce(_SUPERSAMPLING), dtype=np.float32)[..., None] / 255
    return np.rint(image * (1 - alpha) + np.array(color) * alpha).astype(np.uint8)
