"""Where an eye went over an image: a box for each glimpse, numbered and colored by time."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.text import typeface
from visattn.viz.maps.colormap import color_table
from visattn.viz.maps.legend import INK, PAPER

Color = tuple[int, int, int]

_FINE = 3  # lines are drawn so much larger, then made smaller: smooth at any slant
_FIRST, _LAST = 80, 240  # of the 256 colors: neither lost on black nor on white
_DIM = 0.5  # the light that is left where nothing was looked at
_SMALLEST, _LARGEST = 6.0, 11.0  # radius of a number, in pixels
_MANY = 6  # glimpses: from here on the lines of wide windows are fainter
_APART = 2.1  # of numbers, in radii
_SHADE = (16, 16, 20)


def time_colors(count: int) -> list[Color]:
    """Return a color for each glimpse, from violet for the first to yellow for the last.

    Example:
        >>> time_colors(2)
        [(149, 17, 161), (248, 223, 36)]
    """
    steps = np.linspace(_FIRST, _LAST, count).round().astype(int)
    return [(int(r), int(g), int(b)) for r, g, b in color_table("plasma")[steps]]


def scan_path(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "t s 4"],
    *,
    seen: int | None = None,
    area: tuple[int, int, int, int] | None = None,
    numbers: bool = True,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with the path of an eye on it.

    What was looked at keeps its light. Each glimpse has a box for every scale, the finest with the
    strongest line; numbers stand at their middles, a little aside where several would lie on top
    of each other.

    Args:
        image: RGB, as large as it is to be drawn; it may have margins.
        boxes: Left, top, right and bottom of each window, the finest of a glimpse first, in pixels
            of this image. They may reach out of it.
        seen: How many glimpses are over, the last of these being marked; all if left out.
        area: Left, top, right and bottom of the image inside its margins; all if left out.
        numbers: Whether to draw numbers and the line between them.

    Raises:
        ValueError: If a box is not finite, or more glimpses are over than there are.

    Example:
        >>> boxes = np.array([[[4.0, 4, 20, 20]], [[30, 4, 46, 20]]])
        >>> drawn = scan_path(np.full((24, 50, 3), 200, np.uint8), boxes, numbers=False)
        >>> drawn[12, 12].tolist(), drawn[12, 25].tolist()
        ([200, 200, 200], [100, 100, 100])
    """
    count = len(boxes) if seen is None else seen
    if not np.isfinite(boxes).all() or not 0 <= count <= len(boxes):
        raise ValueError(
            f"boxes must be finite and at least {count}, got {len(boxes)}: {boxes.tolist()}"
        )
    far = 8.0 * max(image.shape)  # what lies far outside need not be drawn far outside
    boxes, colors = np.clip(boxes, -far, far), time_colors(len(boxes))[:count]
    lit = _lit(image, boxes[:count], area) if count else image
    size = (image.shape[1] * _FINE, image.shape[0] * _FINE)
    large = Image.fromarray(lit).resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(large, "RGBA")  # lines are mixed with what is below them
    _draw_boxes(pen, boxes[:count], colors, marked=None if seen is None else count - 1)
    if numbers and count:
        _draw_path(pen, boxes[:count], colors, image.shape[:2])
    return np.array(large.reduce(_FINE))


def draw_number(
    pen: ImageDraw.ImageDraw, place: tuple[float, float], number: int, color: Color, radius: float
) -> None:
    """Draw a filled circle with a number in it, around a place.

    Example:
        >>> page = Image.new("RGB", (30, 30))
        >>> draw_number(ImageDraw.Draw(page), (15, 15), 7, (248, 224, 37), 11)
        >>> page.getpixel((7, 15))
        (248, 224, 37)
    """
    (x, y), edge = place, radius * 1.14
    pen.ellipse((x - edge, y - edge, x + edge, y + edge), _SHADE)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), color)
    light = 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2]
    size = max(1, round(radius * (1.35 if number < 10 else 1.1)))
    ink = INK if light > 120 else PAPER
    pen.text((x, y), str(number), ink, typeface(size), anchor="mm")


def _lit(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "t s 4"],
    area: tuple[int, int, int, int] | None,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with its light where it was seen sharply, and less elsewhere."""
    scales = boxes.shape[1]
    left, top, right, bottom = area or (0, 0, image.shape[1], image.shape[0])
    light = np.ones(image.shape[:2], np.float32)
    light[top:bottom, left:right] = _DIM
    margin = light == 1
    for scale in reversed(range(scales)):  # the finest last: it has the last word
        level = 1 - (1 - _DIM) * scale / scales
        for left, top, right, bottom in boxes[:, scale].round().astype(int).clip(0).tolist():
            light[top:bottom, left:right] = level
    light[margin] = 1
    return np.rint(image * light[..., None]).astype(np.uint8)


def _draw_boxes(
    pen: ImageDraw.ImageDraw,
    boxes: Float[np.ndarray, "t s 4"],
    colors: list[Color],
    marked: int | None,
) -> None:
    """Draw the windows, wide ones first; where one glimpse is marked, the others step back."""
    for scale in reversed(range(boxes.shape[1])):
        for index, color in enumerate(colors):
            loud = marked is None or index == marked
            width = (2.0 if loud else 1.5) if not scale else 1.0
            wide = 150 if len(colors) <= _MANY or marked is not None else 80
            strength = (255 if loud else 150) if not scale else (wide if loud else 0)
            box = [float(edge) * _FINE for edge in boxes[index, scale]]
            _draw_box(pen, box, _SHADE, width + 1.4, strength * 2 // 3)
            _draw_box(pen, box, color, width, strength)


def _draw_box(
    pen: ImageDraw.ImageDraw, box: list[float], color: Color, width: float, strength: int
) -> None:
    """Draw a line of some width along the edge of a box, half of it on either side."""
    half = width * _FINE / 2
    left, top, right, bottom = box
    edges = (left - half, top - half, max(left, right + half - 1), max(top, bottom + half - 1))
    pen.rectangle(edges, outline=(*color, strength), width=round(2 * half))


def _draw_path(
    pen: ImageDraw.ImageDraw,
    boxes: Float[np.ndarray, "t s 4"],
    colors: list[Color],
    size: tuple[int, int],
) -> None:
    """Draw numbers at the middles of the glimpses, and the line from one to the next."""
    fine = boxes[:, 0]
    middles = (fine[:, :2] + fine[:, 2:]) / 2
    side = float((fine[:, 2:] - fine[:, :2]).min())
    radius = min(max(0.2 * side, _SMALLEST), _LARGEST)
    whole = np.array(size[::-1], dtype=float)
    edge = np.minimum(1.2 * radius, whole / 2)  # as far as it goes, numbers are shown whole
    inside = np.clip(middles, edge, whole - edge)
    places = _spread(inside, _APART * radius)
    for start, end, color in zip(places, places[1:], colors[1:], strict=False):
        line = [tuple(start * _FINE), tuple(end * _FINE)]
        pen.line(line, (*_SHADE, 170), round(3.6 * _FINE))
        pen.line(line, (*color, 255), round(2.0 * _FINE))
    for middle, place, color in zip(middles, places, colors, strict=False):
        if np.abs(middle - place).max() > 0.5 * radius:  # moved aside: say where it belongs
            (x, y), dot = middle * _FINE, 2.0 * _FINE
            pen.line([(x, y), tuple(place * _FINE)], (*color, 200), _FINE)
            pen.ellipse((x - dot, y - dot, x + dot, y + dot), color, _SHADE)
    for number, (place, color) in enumerate(zip(places, colors, strict=True), start=1):
        x, y = (place * _FINE).tolist()
        draw_number(pen, (x, y), number, color, radius * _FINE)


def _spread(places: Float[np.ndarray, "t 2"], distance: float) -> Float[np.ndarray, "t 2"]:
    """Return places moved as little as it takes that each two lie a distance apart."""
    moved = places.astype(np.float64)
    golden = np.arange(len(places)) * 2.39996  # radians: turns that do not repeat
    moved += 1e-3 * np.stack([np.cos(golden), np.sin(golden)], -1)
    for _ in range(80):
        gap = moved[:, None] - moved
        length = np.linalg.norm(gap, axis=-1) + np.eye(len(moved)) * 1e9
        push = np.clip(distance - length, 0, None) / 2
        if not push.any():
            break
        moved += (gap / length[..., None] * push[..., None]).sum(1) * 0.7
    return moved
