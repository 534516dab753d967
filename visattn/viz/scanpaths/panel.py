"""Panel of a scan path: glimpses, patches, and class probabilities."""

from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike
from visattn.results.values import ScanPath, format_percent
from visattn.viz.canvas import MUTED, TEXT, TRACK, Canvas
from visattn.viz.heatmap import PAGE_WIDTH, DrawOptions
from visattn.viz.rendering import Figure
from visattn.viz.scanpaths.path import (
    MARKER,
    MARKER_RADIUS,
    draw_number_marker,
    draw_patch,
    draw_scan_path,
    glimpse_colors,
    glimpse_mosaic,
    is_wide,
    place_image,
    read_scan,
)
from visattn.viz.text import join_notes, load_font, truncate_text
from visattn.viz.tiles import GAP, MARGIN, SMALL, check_width, scaled_size

# Of classes: cool and gray, as those of glimpses are purple to yellow.
_COLORS = (
    TEXT, (44, 108, 122), (56, 86, 170), (46, 112, 44), MUTED,
    (20, 112, 160), (28, 84, 60), (94, 112, 30),
)  # fmt: skip
_LEFT, _TOP, _BOTTOM = 48, 12, 34  # margins of the plot, in pixels
_MAX_NAME_WIDTH = 84
_MIN_RADIUS = 8.0  # of a number marker; if they do not fit, some are left out


_BAR_HEIGHT = 15


def top_classes(
    probabilities: Float[np.ndarray, "t k"],
    max_classes: int = 5,
    *,
    glimpses_per_label: int | None = None,
) -> list[int]:
    """Return the classes to plot: the predictions, then their rivals.

    A prediction is made after the last glimpse or, for a sequence of labels, after each
    `glimpses_per_label` glimpses; a sequence may have more of them than `max_classes`, up to the
    number of colors. Rivals are the classes with the highest probability after any glimpse, ordered
    by their probability after the last one.

    Example:
        >>> top_classes(np.array([[0.1, 0.6, 0.3], [0.2, 0.1, 0.7]]), max_classes=2)
        [2, 1]
    """
    step = glimpses_per_label or len(probabilities)
    read = list(dict.fromkeys(probabilities[step - 1 :: step].argmax(1).tolist()))
    read = read[: max(max_classes, len(_COLORS))]
    last = probabilities[-1]
    peaks = probabilities.max(0)
    rivals = [int(index) for index in np.argsort(-peaks, kind="stable") if index not in read]
    rivals = rivals[: max(0, max_classes - len(read))]
    return [*read, *sorted(rivals, key=lambda index: -float(last[index]))]


def class_colors(count: int = len(_COLORS)) -> list[tuple[int, int, int]]:
    """Return a color for each plotted class: dark for the first, then one for each rival.

    Example:
        >>> class_colors(2)
        [(34, 36, 40), (44, 108, 122)]
    """
    return [_COLORS[index % len(_COLORS)] for index in range(count)]


def plot_probabilities(
    probabilities: Float[np.ndarray, "t k"],
    class_names: tuple[str, ...],
    size: tuple[int, int],
    *,
    glimpses_per_label: int | None = None,
) -> Canvas:
    """Return a line plot of the most probable classes over glimpses.

    The lines of a sequence of labels are interrupted where the next label begins.

    Args:
        probabilities: Class probabilities after each glimpse.
        class_names: Names of the classes.
        size: Height and width of the plot in pixels; at least 120 x 200.
        glimpses_per_label: Number of glimpses after which each label of a sequence is read.

    Raises:
        ValueError: If the numbers of classes and names differ.

    Example:
        >>> plot_probabilities(np.full((3, 2), 0.5), ("cat", "dog"), (240, 280)).height
        240
    """
    if len(class_names) != probabilities.shape[1]:
        raise ValueError(
            f"each of {probabilities.shape[1]} classes needs a name, got {len(class_names)}"
        )
    (height, width), count = size, len(probabilities)
    page = Canvas(width, height)
    shown = top_classes(probabilities, glimpses_per_label=glimpses_per_label)
    names = [
        truncate_text(class_names[index], load_font(SMALL), _MAX_NAME_WIDTH - 12) for index in shown
    ]
    end = width - 12 - max(load_font(SMALL).getlength(name) for name in names)
    inner_size = (height - _TOP - _BOTTOM, end - _LEFT)
    x = _LEFT + inner_size[1] * (np.arange(count) + 0.5) / count
    y = _TOP + inner_size[0] * (1 - np.nan_to_num(probabilities[:, shown]).T)
    for fraction in (0.0, 0.5, 1.0):
        line = _TOP + inner_size[0] * (1 - fraction)
        page.line([(_LEFT, line), (end, line)], TRACK)
    colors = class_colors(len(shown))
    step = glimpses_per_label or count
    for start in range(step, count, step):  # between two labels
        border = (x[start - 1] + x[start]) / 2
        page.line([(border, _TOP), (border, height - _BOTTOM)], TRACK, 2.0)
    for ys, color in reversed(list(zip(y, colors, strict=True))):
        for start in range(0, count, step):
            _draw_line(page, x[start : start + step], ys[start : start + step], color)
    radius = min(10.0, max(_MIN_RADIUS, 0.42 * inner_size[1] / count))
    # Of markers that would overlap every n-th is drawn, and the last one always.
    every = -(-count * 2.3 * radius // inner_size[1])
    for index, color in enumerate(glimpse_colors(count)):
        if (count - 1 - index) % every == 0:
            center = (float(x[index]), height - _BOTTOM + 22)
            draw_number_marker(page, center, index + 1, color, radius)
    _write_labels(page, names, colors, y[:, -1], (height, end))
    return page


def _draw_line(
    page: Canvas,
    x: Float[np.ndarray, " t"],
    y: Float[np.ndarray, " t"],
    color: tuple[int, int, int],
) -> None:
    """Draw the probabilities of a class as a line with a dot at each glimpse."""
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    width = 3.0 if color == TEXT else 2.0
    if len(points) > 1:
        page.line(points, color, width)
    for point in points:
        page.circle(point, width + 0.6, color)


def _write_labels(
    page: Canvas,
    names: list[str],
    colors: list[tuple[int, int, int]],
    ends: Float[np.ndarray, " k"],
    area: tuple[int, float],
) -> None:
    """Write the labels of the y axis, and the class names at the ends of their lines."""
    (height, end), font = area, load_font(SMALL)
    for fraction in (0.0, 0.5, 1.0):
        position = (_LEFT - 8, _TOP + (height - _TOP - _BOTTOM) * (1 - fraction))
        page.text(position, f"{fraction:.0%}".replace("%", " %"), MUTED, font, anchor="rm")
    order = np.argsort(ends, kind="stable")
    positions = ends[order].astype(float)
    lowest = height - _BOTTOM
    for index in range(1, len(positions)):  # from the top down, without overlap
        positions[index] = max(positions[index], positions[index - 1] + _BAR_HEIGHT)
    # From the bottom up, if the lowest is below the plot now.
    positions[-1] = min(positions[-1], lowest)
    for index in reversed(range(len(positions) - 1)):
        positions[index] = min(positions[index], positions[index + 1] - _BAR_HEIGHT)
    for y, index in zip(positions, order, strict=True):
        page.text((end + 8, float(y)), names[index], colors[index], font, anchor="lm")


_TIMES = "\N{MULTIPLICATION SIGN}"
_INNER_WIDTH = PAGE_WIDTH - 2 * MARGIN
_IMAGE_SHARE = 400 / _INNER_WIDTH  # of a page, of each of two images, which lie side by side
_MIN_WIDTH = 900  # of a page, in pixels
_MIN_PLOT_HEIGHT = 240
_TITLE_SIZE, _HEADER_HEIGHT = 25, 24  # in pixels
_MAX_PATCH = {1: 169, 2: 136}  # maximum side of a patch, by the number of scales
_MAX_PATCH_MANY_SCALES, _MIN_PATCH = 104, 64
_SCALE_GAP = 8  # between the patches of one glimpse
_MARKER_HEIGHT, _LINE_HEIGHT = 32, 22  # above and below the patches of a glimpse
_PROBABILITY_WIDTH = 46
_SCALE_WIDTH = 40  # of the labels of scales, left of the patches


def glimpse_panel(
    image: ImageLike,
    scan: ScanPath,
    *,
    name: str = "",
    width: int | None = None,
    scale: float = 1.0,
) -> Figure:
    """Return a figure of a scan path.

    The first row shows the image with the scan path, the mosaic of all glimpses, and the class
    probabilities after each glimpse. Below are the patches of each glimpse, a row per scale, and
    the most probable class after it. Labels of a sequence are written where they are read. The
    mosaic of a wide image lies below its scan path, both at twice the size.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        name: Name of the image in the figure.
        width: See `DrawOptions`; at least 900 at scale 1.
        scale: See `DrawOptions`.

    Raises:
        ValueError: If the scan path belongs to an image of another size, or the figure is too
            narrow.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_panel(photo, scan, name="photo").image.width
        1200
    """
    pixels, read = read_scan(image, scan)
    drawing = DrawOptions(width=width, scale=scale)
    check_width(drawing, _MIN_WIDTH)
    draw = partial(_draw_panel, pixels, scan, read, name, drawing.page_width)
    return Figure(draw, drawing.zoom)


def _draw_panel(
    pixels: UInt8[np.ndarray, "y x 3"],
    scan: ScanPath,
    read: ScanPath,
    name: str,
    width: int,
    detail: float,
) -> Canvas:
    """Return the drawing of a scan path, of which `read` is what belongs to its labels."""
    inner = width - 2 * MARGIN
    side = round(inner * _IMAGE_SHARE)
    size = f"{pixels.shape[1]} {_TIMES} {pixels.shape[0]}"
    note = join_notes(name, size, *_note_parts(scan), scan.geometry.seen_text)
    boxes, probabilities = read.boxes.numpy(), read.probabilities.numpy()
    wide = is_wide(pixels)
    max_width = 2 * side + GAP if wide else side
    placement = place_image(pixels.shape[:2], boxes, (side, max_width))
    path = draw_scan_path(
        placement.paste_image(pixels, detail),
        placement.boxes_on_canvas(boxes),
        image_area=placement.image_area,
        tags=read.tags,
        detail=detail,
    )
    mosaic = Canvas(placement.image_size[1], placement.image_size[0], detail=detail)
    whole = scaled_size(placement.image_size, detail)
    places = placement.boxes_on_resized_image(boxes) * np.array(
        [whole[1] / mosaic.width, whole[0] / mosaic.height] * 2
    )
    mosaic.paste(glimpse_mosaic(read.patches.numpy(), places, whole), (0, 0), placement.image_size)
    offset = (0, path.height + GAP + _HEADER_HEIGHT) if wide else (side + GAP, 0)
    height = max(_MIN_PLOT_HEIGHT, path.height, offset[1] + mosaic.height)
    plot = plot_probabilities(
        probabilities,
        scan.class_names,
        (height, inner - 2 * side - 2 * GAP),
        glimpses_per_label=scan.glimpses_per_label,
    )
    strip = glimpse_strip(read, width=inner, detail=detail)
    above = MARGIN + _TITLE_SIZE + 40 + _HEADER_HEIGHT
    page = Canvas(width, above + height + 30 + strip.height + MARGIN)
    _write_title(page, read, note)
    shift = (placement.offset[0], 0) if wide else (0, placement.offset[1])  # without the margins
    for header, part, (x, y), (dx, dy) in (
        ("scan path", path, (0, 0), (0, 0)),
        ("mosaic of all glimpses", mosaic, offset, shift),
        ("class probabilities", plot, (2 * (side + GAP), 0), (0, 0)),
    ):
        x, y = MARGIN + x, above + y
        page.text((x, y - _HEADER_HEIGHT), header, MUTED, load_font(SMALL))
        page.place(part, (x + dx, y + dy))
    page.place(strip, (MARGIN, above + height + 30))
    return page


def glimpse_strip(scan: ScanPath, *, width: int = _INNER_WIDTH, detail: float = 1.0) -> Canvas:
    """Return the patches of each glimpse in order, with the most probable class after it.

    Before each row of patches of several scales stands how much wider they are than the first.

    Args:
        scan: What to draw.
        width: In pixels. Glimpses that one row cannot hold go into the next.
        detail: Pixels of images per pixel of the drawing.
    """
    count, scales = scan.boxes.shape[:2]
    gutter = _SCALE_WIDTH if scales > 1 else 0
    widths = (scan.boxes[..., 2] - scan.boxes[..., 0]).numpy()
    side, columns = _strip_layout(count, scales, width - gutter)
    best = scan.probabilities.argmax(1).tolist()
    font = load_font(SMALL + 2)
    names = [scan.class_names[which] for which in best]
    apart = (
        max(map(font.getlength, names)) > side - _PROBABILITY_WIDTH
    )  # chances go below their names
    tall = _MARKER_HEIGHT + scales * (side + _SCALE_GAP) + (2 if apart else 1) * _LINE_HEIGHT
    rows = -(-count // columns)
    page = Canvas(width, rows * tall + (rows - 1) * 16)
    for index, color in enumerate(glimpse_colors(count)):
        x = gutter + index % columns * (side + GAP)
        y = index // columns * (tall + 16)
        center = (x + MARKER / 2, y + MARKER / 2)
        draw_number_marker(page, center, index + 1, color, MARKER_RADIUS)
        for scale, patch in enumerate(scan.patches[index].numpy()):
            top = y + _MARKER_HEIGHT + scale * (side + _SCALE_GAP)
            page.paste(draw_patch(patch, round(side * detail)), (x, top), (side, side))
            if gutter and index % columns == 0:
                factor = widths[index, scale] / widths[index, 0]
                place = (x - 10, top + side / 2)
                page.text(place, f"{_TIMES}{factor:.3g}", MUTED, load_font(SMALL), anchor="rm")
        below = y + tall - 20
        chance = format_percent(float(scan.probabilities[index, best[index]]))
        name = truncate_text(names[index], font, side if apart else side - _PROBABILITY_WIDTH)
        was_read = scan.glimpses_per_label is None or index in scan.tags
        page.text((x, below - _LINE_HEIGHT * apart), name, TEXT if was_read else MUTED, font)
        place, anchor = ((x, below), "la") if apart else ((x + side, below + 1), "ra")
        page.text(place, chance, MUTED, load_font(SMALL), anchor=anchor)
    return page


def _strip_layout(count: int, scales: int, width: int) -> tuple[int, int]:
    """Return the side of a patch and the number of glimpses in a row."""
    max_side = _MAX_PATCH.get(scales, _MAX_PATCH_MANY_SCALES)
    side = min(max_side, (width + GAP) // count - GAP)
    if side >= _MIN_PATCH:
        return side, count
    max_columns = (width + GAP) // (_MIN_PATCH + GAP)
    columns = -(-count // -(-count // max_columns))  # balances the rows
    return min(max_side, (width + GAP) // columns - GAP), columns


def _write_title(page: Canvas, scan: ScanPath, note: str) -> None:
    name, probability = scan.prediction, scan.probability
    font = load_font(SMALL + 4)
    large = load_font(_TITLE_SIZE)
    text = truncate_text(name, large, page.width - 2 * MARGIN - 100)
    page.text((MARGIN, MARGIN - 6), text, TEXT, large)
    x = MARGIN + large.getlength(text) + 14
    page.text((x, MARGIN + 2), format_percent(probability), MUTED, font)
    small = load_font(SMALL)
    page.text(
        (MARGIN, MARGIN + _TITLE_SIZE + 6),
        truncate_text(note, small, page.width - 2 * MARGIN),
        MUTED,
        small,
    )


def _note_parts(scan: ScanPath) -> list[str]:
    """Return the description of the glimpses: input size, glimpse size, policy."""
    count, scales, _, side, _ = scan.patches.shape
    text = f"{count} glimpse{'' if count == 1 else 's'} of {side} {_TIMES} {side}"
    text += f" at {scales} scales" if scales > 1 else ""
    text += f", {scan.glimpses_per_label} per label" if scan.glimpses_per_label else ""
    policy = scan.maps.info.policy
    seed = f", seed {scan.maps.info.seed}" if policy in ("sampled", "random") else ""
    height, width = scan.maps.values.shape[1:]
    return [f"network input {width} {_TIMES} {height}", text, f"{policy} policy{seed}"]


def glimpse_overlay(
    image: ImageLike, scan: ScanPath, *, max_side: int = 400
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with its scan path.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        max_side: Maximum length of the longer side, in pixels.

    Raises:
        ValueError: If the scan path belongs to an image of another size.
    """
    pixels, read = read_scan(image, scan)
    boxes = read.boxes.numpy()
    view = place_image(pixels.shape[:2], boxes, (max_side, max_side))
    drawn = draw_scan_path(
        view.paste_image(pixels),
        view.boxes_on_canvas(boxes),
        image_area=view.image_area,
        tags=read.tags,
    )
    return np.array(drawn.paint())


def notebook_scanpath(scan: ScanPath) -> bytes | None:
    """Return the scan path on the network's input, as a PNG file for notebooks.

    Args:
        scan: A scan path; None is returned for one of a record without pixels.
    """
    if not len(scan.pixels):
        return None
    boxes = scan.geometry.to_input(scan.boxes.view(-1, 2)).view(scan.boxes.shape)
    on_input = replace(scan, boxes=boxes, geometry=Geometry.identity(scan.geometry.input_size))
    panel = glimpse_panel(scan.pixels.expand(3, -1, -1).permute(1, 2, 0).numpy(), on_input)
    return panel.to_bytes()
