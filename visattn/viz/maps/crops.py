"""Where a network looked when it cut a piece out of its image: the frame, and the piece."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.maps.resize import resized_image

Color = tuple[int, int, int]
_FINE = 4  # the line is drawn so much larger, then made smaller: smooth at any slant
_GAP = 6


def framed_crop(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    *,
    color: Color = (255, 196, 0),
    width: float = 2.0,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a line around a four-sided piece of it.

    A dot marks the corner that is the top left of the piece, so that its turn can be seen.

    Args:
        image: RGB.
        corners: Of the piece in order around it, the top left first, in pixels of the image, x
            before y; they may lie outside.
        color: Of the line, RGB; it lies on a darker, wider one, so that it shows on any ground.
        width: Of the line, in pixels.

    Raises:
        ValueError: If a corner is not finite, or the line has no width.

    Example:
        >>> whole = np.array([[1, 1], [9, 1], [9, 9], [1, 9]], dtype=float)
        >>> drawn = framed_crop(np.zeros((10, 10, 3), np.uint8), whole, width=1)
        >>> bool(drawn[1, 5, 0] > 60), int(drawn[5, 5, 0])
        (True, 0)
    """
    if not np.isfinite(corners).all() or width <= 0:
        raise ValueError(f"corners must be finite, width above 0; got {corners.tolist()}, {width}")
    shade: Color = (color[0] // 5, color[1] // 5, color[2] // 5)
    drawn = _lined(image, corners, shade, width + 2, 1.5 * width + 1)
    return _lined(drawn, corners, color, width, 1.5 * width)


def crop_panel(
    images: UInt8[np.ndarray, "n y x 3"],
    corners: Float[np.ndarray, "n 4 2"],
    crops: UInt8[np.ndarray, "n y2 x2 3"],
    *,
    height: int = 96,
    columns: int = 8,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Return images with the frames of their pieces, each piece below its image.

    Args:
        images: RGB.
        corners: Of each piece, as `framed_crop` takes them.
        crops: What the network saw of each image.
        height: Of an image on the panel, in pixels.
        columns: Images side by side.

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
    count, rows, across = len(images), images.shape[1], images.shape[2]
    scale = height / rows
    size = (height, max(1, round(across * scale)))
    columns = min(columns, count)
    lines = -(-count // columns)
    cell = (2 * height + 2 * _GAP, size[1] + _GAP)
    panel = np.full((lines * cell[0] + _GAP, columns * cell[1] + _GAP, 3), 255, np.uint8)
    for index in range(count):
        top = _GAP + index // columns * cell[0]
        left = _GAP + index % columns * cell[1]
        shown = framed_crop(resized_image(images[index], size), corners[index] * scale)
        panel[top : top + size[0], left : left + size[1]] = shown
        below = top + size[0] + _GAP // 2
        panel[below : below + size[0], left : left + size[1]] = resized_image(crops[index], size)
    return panel


def _lined(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    color: Color,
    width: float,
    dot: float,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a closed line and a dot of some radius at its first corner."""
    rows, columns = image.shape[:2]
    mask = Image.new("L", (columns * _FINE, rows * _FINE))
    pen = ImageDraw.Draw(mask)
    # What lies far outside need not be drawn far outside.
    far = 8.0 * max(rows, columns)
    places = [tuple(place) for place in (np.clip(corners, -far, far) * _FINE).tolist()]
    pen.line([*places, *places[:2]], fill=255, width=round(width * _FINE), joint="curve")
    (x, y), reach = places[0], dot * _FINE
    pen.ellipse((x - reach, y - reach, x + reach, y + reach), fill=255)
    share = np.asarray(mask.reduce(_FINE), dtype=np.float32)[..., None] / 255
    return np.rint(image * (1 - share) + np.array(color) * share).astype(np.uint8)
