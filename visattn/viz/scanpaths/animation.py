"""Animated GIFs of scan paths: one image in detail, or a grid of many images."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike
from visattn.results.values import ReadLabel, ScanPath, format_percent, label_text
from visattn.viz.canvas import ACCENT, BACKGROUND, MUTED, TEXT, TRACK
from visattn.viz.gif import encode_gif
from visattn.viz.scanpaths.panel import class_colors, top_classes
from visattn.viz.scanpaths.path import (
    ImagePlacement,
    draw_scan_path,
    glimpse_colors,
    glimpse_mosaic,
    is_wide,
    place_image,
    read_scan,
)
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import SMALL

FIRST_DURATION, GLIMPSE_DURATION, LAST_DURATION = 1000, 900, 2800  # of frames, in milliseconds
_MARGIN, _GAP = 14, 12
_BAR_HEIGHT = 22
_NAME_WIDTH = 110
_PROBABILITY_WIDTH = 52
_MIN_WIDTH = 240  # in pixels


def glimpse_animation(
    image: ImageLike, scan: ScanPath, *, width: int = 560, max_bytes: int = 1_500_000
) -> bytes:
    """Return an animated GIF: the image, a frame for each glimpse, and the complete scan path.

    Each frame shows the scan path at the left, the mosaic of glimpses at the right, and the class
    probabilities below. If the file would exceed `max_bytes`, the frames are made smaller.

    Args:
        image: The original image.
        scan: Its scan path, from `glimpses`.
        width: Width in pixels, at least 240.
        max_bytes: Maximum size of the file; exceeded only at the minimum width.

    Raises:
        ValueError: If the scan path belongs to an image of another size, or the width is too small.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_animation(photo, scan)[:3]
        b'GIF'
    """
    pixels, scan = read_scan(image, scan)
    if width < _MIN_WIDTH:
        raise ValueError(f"an animation must be at least {_MIN_WIDTH} pixels wide, got {width}")
    durations = [FIRST_DURATION, *[GLIMPSE_DURATION] * len(scan.boxes), LAST_DURATION]
    while True:
        frames, image_height = _draw_frames(pixels, scan, width)
        text_colors = [*glimpse_colors(len(scan.boxes)), *class_colors()]
        gif = encode_gif(frames, durations, image_height, text_colors=text_colors)
        if len(gif) <= max_bytes or width == _MIN_WIDTH:
            return gif
        width = max(_MIN_WIDTH, int(width * 0.95 * (max_bytes / len(gif)) ** 0.5))


def _draw_frames(
    image: UInt8[np.ndarray, "y x 3"], scan: ScanPath, width: int
) -> tuple[list[Image.Image], int]:
    """Return all frames, and the height of their images."""
    boxes = scan.boxes.numpy()
    probabilities = scan.probabilities.numpy()
    wide = is_wide(image)
    max_width = width - 2 * _MARGIN
    half = (max_width - _GAP) // 2
    placement = place_image(image.shape[:2], boxes, (half, max_width if wide else half))
    shown = top_classes(probabilities, glimpses_per_label=scan.glimpses_per_label)
    rows, columns = placement.canvas_size
    left = (width - columns if wide else width - 2 * columns - _GAP) // 2
    dx, dy = (0, rows + _GAP) if wide else (columns + _GAP, 0)
    mosaic_place = (left + dx + placement.offset[0], _MARGIN + dy + placement.offset[1])
    height = _MARGIN + dy + rows + _MARGIN
    frame_size = (width, height + len(shown) * _BAR_HEIGHT + _MARGIN)
    count = len(boxes)
    canvas = placement.paste_image(image)
    frames = []
    for step in range(count + 2):
        drawn_glimpses = min(step, count)
        frame = Image.new("RGB", frame_size, BACKGROUND)
        current = None if step > count else drawn_glimpses
        path = draw_scan_path(
            canvas,
            placement.boxes_on_canvas(boxes),
            num_glimpses=current,
            image_area=placement.image_area,
            tags=scan.tags,
        )
        frame.paste(path.paint(), (left, _MARGIN))
        mosaic = Image.fromarray(_mosaic_of_first(scan, placement, drawn_glimpses))
        frame.paste(mosaic, mosaic_place)
        _draw_bars(ImageDraw.Draw(frame), scan, shown, drawn_glimpses, height)
        frames.append(frame)
    return frames, height


def _mosaic_of_first(scan: ScanPath, placement: ImagePlacement, count: int) -> np.ndarray:
    boxes = placement.boxes_on_resized_image(scan.boxes.numpy())
    return glimpse_mosaic(scan.patches[:count].numpy(), boxes[:count], placement.image_size)


def _draw_bars(
    pen: ImageDraw.ImageDraw, scan: ScanPath, shown: Sequence[int], count: int, top: int
) -> None:
    """Draw the class probabilities after some glimpses; before the first, empty bars."""
    font = load_font(SMALL + 1)
    width = pen.im.size[0]
    names = [truncate_text(scan.class_names[index], font, _NAME_WIDTH) for index in shown]
    start = _MARGIN + max(map(font.getlength, names)) + 12
    end = width - _MARGIN - _PROBABILITY_WIDTH
    best = int(scan.probabilities[count - 1].argmax()) if count else -1
    for line, (index, color) in enumerate(zip(shown, class_colors(len(shown)), strict=True)):
        y = top + line * _BAR_HEIGHT + _BAR_HEIGHT // 2
        pen.text((start - 12, y), names[line], TEXT if index == best else MUTED, font, anchor="rm")
        pen.rectangle((start, y - 4, end, y + 3), TRACK)
        if not count:
            continue
        probability = float(scan.probabilities[count - 1, index])
        length = round((end - start) * probability)
        if length:
            pen.rectangle((start, y - 4, start + length, y + 3), color)
        text_color = TEXT if index == best else MUTED
        pen.text((width - _MARGIN, y), format_percent(probability), text_color, font, anchor="rm")


_WRONG_COLOR = (186, 84, 84)
_CAPTION_HEIGHT = 30


def glimpse_wall(
    images: Sequence[ImageLike],
    scans: Sequence[ScanPath],
    *,
    truths: Sequence[str | None] = (),
    columns: int | None = None,
    side: int = 170,
) -> bytes:
    """Return an animated GIF of a grid of images: a frame for each glimpse, and the complete paths.

    Below each image is the most probable class so far, with its probability.

    Args:
        images: The original images, at least one.
        scans: One scan path per image. A path with fewer glimpses than another stays complete.
        truths: True class of each image, if known, or its labels, separated by spaces; wrong
            predictions are red.
        columns: Number of columns; by default slightly more than rows.
        side: Maximum side of an image in pixels.

    Raises:
        ValueError: If there is no scan path, or not one image or true class for each, or one
            belongs to an image of another size.

    Example:
        >>> from visattn.models import RecurrentAttentionModel
        >>> from visattn.pipelines.scanpath import glimpses
        >>> model = RecurrentAttentionModel(
        ...     ("cat", "dog"), (24, 24), (0.5,), (0.5,), glimpse_size=5, num_glimpses=3
        ... )
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [scan] = glimpses(model, photo)
        >>> glimpse_wall([photo, photo], [scan, scan], columns=2)[:3]
        b'GIF'
    """
    if len(images) != len(scans):
        raise ValueError(
            f"there must be one scan path per image, got {len(scans)} for {len(images)} images"
        )
    if not scans or len(truths) not in (0, len(scans)):
        raise ValueError(
            "a grid needs at least one scan path, and either no truths or one for each; got "
            f"{len(scans)} scan paths and {len(truths)} truths"
        )
    placed = [read_scan(*pair) for pair in zip(images, scans, strict=True)]
    count = max(len(scan.boxes) for _, scan in placed)
    columns = columns or min(len(scans), round((1.6 * len(scans)) ** 0.5 + 0.4))
    true_classes = list(truths) or [None] * len(scans)
    frames = [
        _draw_grid_frame(placed, true_classes, step, columns, side) for step in range(count + 2)
    ]
    durations = [FIRST_DURATION, *[GLIMPSE_DURATION] * count, LAST_DURATION]
    text_colors = [*glimpse_colors(count), ACCENT, _WRONG_COLOR]
    return encode_gif(frames, durations, frames[0].height, text_colors=text_colors)


def _draw_grid_frame(
    placed: Sequence[tuple[UInt8[np.ndarray, "_y _x 3"], ScanPath]],
    truths: Sequence[str | None],
    step: int,
    columns: int,
    side: int,
) -> Image.Image:
    """Return all images after `step` glimpses; one step more shows the complete paths."""
    rows = -(-len(placed) // columns)
    column_step = side + _GAP
    row_step = side + _CAPTION_HEIGHT + _GAP
    size = (2 * _MARGIN + columns * column_step - _GAP, 2 * _MARGIN + rows * row_step - _GAP)
    page = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(page)
    for index, ((image, scan), truth) in enumerate(zip(placed, truths, strict=True)):
        x = _MARGIN + index % columns * column_step
        y = _MARGIN + index // columns * row_step
        count = len(scan.boxes)
        scan_boxes = scan.boxes.numpy()
        placement = place_image(image.shape[:2], scan_boxes, (side, side), max_margin=0)
        current = None if step > count else step
        boxes = placement.boxes_on_canvas(scan_boxes)
        drawn = draw_scan_path(
            placement.paste_image(image),
            boxes,
            num_glimpses=current,
            image_area=placement.image_area,
            tags=scan.tags,
        )
        place = (x + (side - drawn.width) // 2, y + (side - drawn.height) // 2)
        page.paste(drawn.paint(), place)
        if step:
            _write_prediction(pen, scan, truth, min(step, count) - 1, (x, y + side + 7, x + side))
    return page


def _write_prediction(
    pen: ImageDraw.ImageDraw,
    scan: ScanPath,
    truth: str | None,
    glimpse: int,
    place: tuple[int, int, int],
) -> None:
    """Write the prediction after a glimpse, with its probability: the class or all labels read."""
    left, top, right = place
    predicted, chance = _prediction_so_far(scan, glimpse)
    font = load_font(SMALL)
    probability = format_percent(chance)
    pen.text((right, top + 2), probability, MUTED, font, anchor="ra")
    large = load_font(SMALL + 3)
    name = truncate_text(predicted, large, right - left - font.getlength(probability) - 8)
    color = TEXT if truth is None else ACCENT if truth == predicted else _WRONG_COLOR
    pen.text((left, top), name, color, large)


def _prediction_so_far(scan: ScanPath, glimpse: int) -> tuple[str, float]:
    """Return the labels read so far and the probable next one, with their probability."""
    best = int(scan.probabilities[glimpse].argmax())
    name = scan.class_names[best]
    probability = float(scan.probabilities[glimpse, best])
    if scan.glimpses_per_label is None:
        return name, probability
    earlier = [label for label in scan.labels if label.glimpse < glimpse]
    return label_text([*earlier, ReadLabel(name, probability, glimpse)], scan.end_class)
