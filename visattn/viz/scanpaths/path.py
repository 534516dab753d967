"""Scan path on its image: glimpse boxes, patches, and the canvas that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from visattn.images.reader import ImageLike, read_image
from visattn.results.values import ScanPath
from visattn.viz.canvas import BACKGROUND, TEXT, TRACK, Canvas, Color
from visattn.viz.heatmap import colormap_lut, overlay, resize_image
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import scaled_size

_MIN_INTEGER_SCALE = 3  # larger scales are rounded down, so that all pixels have equal size


@dataclass(frozen=True)
class ImagePlacement:
    """Position and scale of an image on a canvas.

    Args:
        canvas_size: Height and width of the canvas.
        image_size: Height and width of the resized image.
        offset: Left and top of the image on the canvas.
        scale: Scale of the image along x and y.
    """

    canvas_size: tuple[int, int]
    image_size: tuple[int, int]
    offset: tuple[int, int]
    scale: tuple[float, float]

    @property
    def image_area(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the image on the canvas."""
        left, top = self.offset
        return left, top, left + self.image_size[1], top + self.image_size[0]

    def boxes_on_canvas(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Transform boxes from pixels of the image to pixels of the canvas."""
        return self.boxes_on_resized_image(boxes) + np.array(self.offset * 2, dtype=float)

    def boxes_on_resized_image(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Transform boxes from pixels of the image to pixels of the resized image."""
        return boxes * np.array(self.scale * 2)

    def paste_image(
        self, image: UInt8[np.ndarray, "y x 3"], detail: float = 1.0
    ) -> UInt8[np.ndarray, "y2 x2 3"]:
        """Return the canvas: the resized image with margins of one color.

        Args:
            image: RGB.
            detail: Pixels of the result per pixel of the canvas.
        """
        canvas = np.empty((*scaled_size(self.canvas_size, detail), 3), np.uint8)
        canvas[:] = TRACK
        left, top, right, bottom = (round(side * detail) for side in self.image_area)
        canvas[top:bottom, left:right] = resize_image(image, (bottom - top, right - left))
        return canvas


def place_image(
    image_size: tuple[int, int],
    boxes: Float[np.ndarray, "t s 4"],
    max_size: tuple[int, int],
    *,
    max_margin: float = 0.15,
) -> ImagePlacement:
    """Fit an image and the glimpses around it into a canvas.

    Args:
        image_size: Height and width of the image.
        boxes: Left, top, right and bottom of each box, the finest scale first, in pixels of the
            image.
        max_size: Maximum height and width of the canvas.
        max_margin: Maximum margin for boxes of the finest scale that extend beyond the image, as a
            fraction of the longer side of the image.

    Example:
        >>> place_image((28, 28), np.array([[[-4.0, 10.0, 4.0, 18.0]]]), (340, 340)).offset
        (40, 0)
    """
    limit = max_margin * max(image_size)
    finest = boxes[:, 0]
    image_width_height = np.array(image_size[::-1])
    before = np.clip(-finest[:, :2].min(0, initial=0), 0, limit)  # left, top
    after = np.clip(finest[:, 2:].max(0, initial=0) - image_width_height, 0, limit)
    width, height = before + after + image_width_height
    scale = min(max_size[1] / width, max_size[0] / height)
    scale = float(int(scale)) if scale >= _MIN_INTEGER_SCALE else scale
    resized = max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))
    (left, top), (right, bottom) = np.ceil(before * scale), np.ceil(after * scale)
    canvas = (resized[0] + int(top) + int(bottom), resized[1] + int(left) + int(right))
    scales = (resized[1] / image_size[1], resized[0] / image_size[0])
    return ImagePlacement(canvas, resized, (int(left), int(top)), scales)


def glimpse_mosaic(
    patches: UInt8[np.ndarray, "t s c g g"],
    boxes: Float[np.ndarray, "t s 4"],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the patches of all glimpses at their positions, at the resolution of the model.

    Where patches overlap, the finest scale is on top, and of one scale the latest glimpse. Pixels
    outside all patches are hatched.

    Args:
        patches: Pixels of each glimpse and scale, with one or three color channels.
        boxes: Left, top, right and bottom of each glimpse and scale, the finest scale first, in
            pixels of the output.
        size: Height and width of the output.

    Raises:
        ValueError: If the patches have no channels, as those of records of `visattn glimpse`.

    Example:
        >>> white = np.full((1, 1, 1, 2, 2), 255, np.uint8)
        >>> glimpse_mosaic(white, np.array([[[0.0, 0, 2, 2]]]), (2, 4))[0, :, 0] == 255
        array([ True,  True, False, False])
    """
    if not patches.shape[2]:
        raise ValueError(
            "the scan path is that of a record without what the network saw: compute it with "
            "glimpses(model, image), or read one that save of a ScanPath wrote"
        )
    blank = np.zeros((*size, 3), np.uint8)
    output = overlay(blank, np.full(size, np.nan), hatched=True)
    for scale in reversed(range(boxes.shape[1])):
        for patch, box in zip(patches[:, scale], boxes[:, scale], strict=True):
            _paste_patch(output, patch_to_rgb(patch), box)
    return output


def draw_patch(patch: UInt8[np.ndarray, "c g g"], size: int) -> UInt8[np.ndarray, "size size 3"]:
    """Return a patch resized to a square image.

    Example:
        >>> draw_patch(np.zeros((1, 8, 8), np.uint8), 24).shape
        (24, 24, 3)
    """
    return resize_image(patch_to_rgb(patch), (size, size))


def patch_to_rgb(patch: UInt8[np.ndarray, "c y x"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image of one or three channels, channels first, as RGB, channels last.

    Example:
        >>> patch_to_rgb(np.full((1, 1, 1), 9, np.uint8))
        array([[[9, 9, 9]]], dtype=uint8)
    """
    return np.ascontiguousarray(np.broadcast_to(patch, (3, *patch.shape[1:])).transpose(1, 2, 0))


def _paste_patch(
    output: UInt8[np.ndarray, "y x 3"],
    patch: UInt8[np.ndarray, "g g 3"],
    box: Float[np.ndarray, " 4"],
) -> None:
    """Paste a patch into a box by nearest neighbor, at the pixels whose centers are in the box."""
    rows, patch_rows = _nearest_cells(float(box[1]), float(box[3]), len(output), len(patch))
    columns, patch_columns = _nearest_cells(
        float(box[0]), float(box[2]), output.shape[1], len(patch)
    )
    output[rows[:, None], columns] = patch[patch_rows[:, None], patch_columns]


def _nearest_cells(
    start: float, end: float, length: int, num_cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of one axis inside an interval, and the patch cell of each."""
    # From 0.6 to 3.6 lie the centers of pixels 1, 2 and 3, which show cells 0, 1 and 1 of two.
    centers = np.arange(length) + 0.5
    inside = np.flatnonzero((centers >= start) & (centers < end))
    position = (centers[inside] - start) / (end - start)
    return inside, np.minimum((position * num_cells).astype(int), num_cells - 1)


_WIDE = 2.0  # ratio of width to height
_FIRST_COLOR, _LAST_COLOR = 80, 240  # indices into the colormap: visible on black and on white
_DIMMED = 0.5  # brightness outside all glimpses
_MIN_RADIUS, _MAX_RADIUS = 6.0, 11.0  # of a number marker, in pixels
MARKER, MARKER_RADIUS = 24, 10  # of a number marker beside or below an image, in pixels
_MARKER_DISTANCE = 2.1  # minimum distance of number markers, in radii
_OUTLINE = (16, 16, 20)
_TAG_SIZE, _TAG_GAP = 15, 3  # of the text at a glimpse; to its box, in pixels


def glimpse_colors(count: int) -> list[Color]:
    """Return a color for each glimpse, from violet for the first to yellow for the last.

    Example:
        >>> glimpse_colors(2)
        [(149, 17, 161), (248, 223, 36)]
    """
    steps = np.linspace(_FIRST_COLOR, _LAST_COLOR, count).round().astype(int)
    return [(int(r), int(g), int(b)) for r, g, b in colormap_lut("plasma")[steps]]


def draw_scan_path(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "t s 4"],
    *,
    image_area: tuple[int, int, int, int] | None = None,
    show_numbers: bool = True,
    tags: Mapping[int, str] | None = None,
    detail: float = 1.0,
) -> Canvas:
    """Return a drawing of an image with the scan path of a recurrent attention model.

    The image is dimmed outside the glimpses. Each glimpse has the box of its finest scale, with its
    number outside of it, moved aside where numbers would overlap; the last one has the boxes of all
    scales. Lines from box to box show the order.

    Args:
        image: RGB, at the size of the drawing times `detail`; it may have margins.
        boxes: Left, top, right and bottom of each glimpse and scale, the finest scale first, in
            pixels of this image. They may extend beyond it.
        image_area: Left, top, right and bottom of the image inside its margins; by default the
            whole image.
        show_numbers: Whether to draw the numbers and the lines between them.
        tags: Texts at glimpses, by their index, such as the labels that were read there.
        detail: Pixels of the image per pixel of the drawing.

    Raises:
        ValueError: If a box is not finite.

    Example:
        >>> boxes = np.array([[[4.0, 4, 20, 20]], [[30, 4, 46, 20]]])
        >>> drawn = draw_scan_path(np.full((24, 50, 3), 200, np.uint8), boxes, show_numbers=False)
        >>> drawn.paint().getpixel((12, 12)), drawn.paint().getpixel((25, 12))
        ((200, 200, 200), (100, 100, 100))
    """
    if not np.isfinite(boxes).all():
        raise ValueError(f"boxes must be finite, got {boxes.tolist()}")
    limit = 8.0 * max(image.shape)
    boxes, colors = np.clip(boxes, -limit, limit), glimpse_colors(len(boxes))
    height, width = round(image.shape[0] / detail), round(image.shape[1] / detail)
    canvas = Canvas(width, height)
    left, top, right, bottom = image_area or (0, 0, width, height)
    area = tuple(round(side * detail) for side in (left, top, right, bottom))
    canvas.paste(_dim_outside(image, boxes * detail, area), (0, 0), (height, width))
    _draw_boxes(canvas, boxes, colors)
    if show_numbers:
        _draw_path(canvas, boxes, colors, (height, width))
    for index, text in (tags or {}).items():
        _draw_tag(canvas, boxes[index, 0], text, colors[index])
    return canvas


def draw_number_marker(
    canvas: Canvas, center: tuple[float, float], number: int, color: Color, radius: float
) -> None:
    """Draw a filled circle with a number in it.

    Example:
        >>> page = Canvas(30, 30)
        >>> draw_number_marker(page, (15, 15), 7, (248, 224, 37), 11)
        >>> page.paint().getpixel((7, 15))
        (248, 224, 37)
    """
    canvas.circle(center, radius * 1.14, _OUTLINE)
    canvas.circle(center, radius, color)
    font = load_font(radius * (1.35 if number < 10 else 1.1))
    canvas.text(center, str(number), contrasting_color(color), font, anchor="mm", smooth=True)


def contrasting_color(color: Color) -> Color:
    """Return the color of text on a color: dark on bright, bright on dark.

    Example:
        >>> contrasting_color((248, 223, 36)) == TEXT
        True
    """
    luminance = 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2]
    return TEXT if luminance > 120 else BACKGROUND


def _dim_outside(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "t s 4"],
    image_area: tuple[int, ...],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image, darker outside the boxes of the finest scale."""
    scales = boxes.shape[1]
    left, top, right, bottom = image_area
    brightness = np.ones(image.shape[:2], np.float32)
    brightness[top:bottom, left:right] = _DIMMED
    margin = brightness == 1
    for scale in reversed(range(scales)):  # the finest scale overwrites coarser ones
        # Of two scales 1 in the finer, 0.75 in the coarser, and 0.5 outside.
        level = 1 - (1 - _DIMMED) * scale / scales
        for left, top, right, bottom in boxes[:, scale].round().astype(int).clip(0).tolist():
            brightness[top:bottom, left:right] = level
    brightness[margin] = 1
    return np.rint(image * brightness[..., None]).astype(np.uint8)


def _draw_boxes(canvas: Canvas, boxes: Float[np.ndarray, "t s 4"], colors: list[Color]) -> None:
    """Draw the boxes, the coarsest scale first.

    Only the last glimpse has its coarse scales: nested boxes of all would cover the photo.
    """
    for scale in reversed(range(boxes.shape[1])):
        for index, color in enumerate(colors):
            if scale and index != len(colors) - 1:
                continue
            width, alpha = (1.0, 150) if scale else (2.0, 255)
            edges = boxes[index, scale].tolist()
            canvas.frame(edges, (*_OUTLINE, alpha * 2 // 3), width + 1.4)
            canvas.frame(edges, (*color, alpha), width)


def _draw_path(
    canvas: Canvas,
    boxes: Float[np.ndarray, "t s 4"],
    colors: list[Color],
    size: tuple[int, int],
) -> None:
    """Draw a line from each box to the next, and the numbers outside of their boxes."""
    finest = boxes[:, 0]
    side = float((finest[:, 2:] - finest[:, :2]).min())
    radius = min(max(0.2 * side, _MIN_RADIUS), _MAX_RADIUS)
    for start, end, color in zip(finest, finest[1:], colors[1:], strict=False):
        line = _line_between(start, end)
        if line:
            canvas.line(line, (*_OUTLINE, 170), 3.6)
            canvas.line(line, (*color, 255), 2.0)
    width_height = np.array(size[::-1], dtype=float)
    margin = np.minimum(1.2 * radius, width_height / 2)  # keeps the markers inside the image
    corners = np.clip(finest[:, :2], 0, width_height)
    outside = np.clip(finest[:, :2] - 0.9 * radius, margin, width_height - margin)
    positions = _separate_points(outside, _MARKER_DISTANCE * radius)
    for corner, position, color in zip(corners, positions, colors, strict=True):
        if np.linalg.norm(corner - position) > 2.2 * radius:  # a line to the corner of the box
            canvas.line([tuple(corner), tuple(position)], (*color, 200))
            canvas.circle(tuple(corner), 2.0, color, outline=_OUTLINE)
    for number, (position, color) in enumerate(zip(positions, colors, strict=True), start=1):
        x, y = position.tolist()
        draw_number_marker(canvas, (x, y), number, color, radius)


def _line_between(
    start: Float[np.ndarray, " 4"], end: Float[np.ndarray, " 4"]
) -> list[tuple[float, float]]:
    """Return the line from the center of a box to that of another, as far as it is outside of both.

    What was looked at stays visible. Boxes that overlap have no line.
    """
    first, last = ((box[:2] + box[2:]) / 2 for box in (start, end))
    step = last - first
    length = np.maximum(np.abs(step), 1e-9)
    leaves = float(((start[2:] - start[:2]) / 2 / length).min())
    enters = 1 - float(((end[2:] - end[:2]) / 2 / length).min())
    if leaves >= enters:
        return []
    ends = [(first + share * step) for share in (leaves, enters)]
    return [(float(x), float(y)) for x, y in ends]


def _draw_tag(canvas: Canvas, box: Float[np.ndarray, "4"], text: str, color: Color) -> None:
    """Draw a text on a plate above the box of a glimpse, or below where there is no room."""
    font = load_font(_TAG_SIZE)
    text = truncate_text(text, font, canvas.width / 2)
    width = font.getlength(text) + 8
    height = _TAG_SIZE + 5
    left, top, _, bottom = box.tolist()
    y = top - height - _TAG_GAP if top >= height + _TAG_GAP else bottom + _TAG_GAP
    x, y = max(0, min(left, canvas.width - width)), max(0, min(y, canvas.height - height))
    plate = (x, y, x + width, y + height)
    canvas.rectangle(plate, (*color, 255), outline=(*_OUTLINE, 255), smooth=True)
    center = (x + width / 2, y + height / 2)
    canvas.text(center, text, contrasting_color(color), font, anchor="mm", smooth=True)


def _separate_points(points: Float[np.ndarray, "t 2"], distance: float) -> Float[np.ndarray, "t 2"]:
    """Return points moved apart until each two have a minimum distance (80 iterations at most)."""
    moved = points.astype(np.float64)
    # Points at one place have no direction in which they could be pushed apart.
    golden = np.arange(len(points)) * 2.39996  # golden angle: distinct directions
    moved += 1e-3 * np.stack([np.cos(golden), np.sin(golden)], -1)
    for _ in range(80):
        gap = moved[:, None] - moved
        length = np.linalg.norm(gap, axis=-1) + np.eye(len(moved)) * 1e9
        push = np.clip(distance - length, 0, None) / 2
        if not push.any():
            break
        moved += (gap / length[..., None] * push[..., None]).sum(1) * 0.7
    return moved


def read_scan(image: ImageLike, scan: ScanPath) -> tuple[UInt8[np.ndarray, "y x 3"], ScanPath]:
    """Return the pixels of an image, and its scan path up to the end of its sequence of labels.

    Args:
        image: The original image.
        scan: Its scan path.

    Raises:
        ValueError: If the scan path belongs to an image of another size.
    """
    original = read_image(image)
    if (size := scan.geometry.image_size) != original.size:
        raise ValueError(
            f"the scan path belongs to an image of {size} (height, width), but {original.name} has "
            f"{original.size}; pass the original image"
        )
    return original.pixels, scan.until_end()


def is_wide(image: UInt8[np.ndarray, "y x 3"]) -> bool:
    """Return whether the mosaic is drawn below the scan path instead of beside it.

    Example:
        >>> is_wide(np.zeros((10, 30, 3), np.uint8))
        True
    """
    height, width = image.shape[:2]
    return width >= _WIDE * height
