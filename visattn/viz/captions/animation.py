"""Animated GIF of a caption: the attention map of each word."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike, read_image
from visattn.results.captions import Caption
from visattn.viz.captions.images import check_one_image
from visattn.viz.layout.gif import encode_gif
from visattn.viz.layout.text import ELLIPSIS, load_font, truncate_text
from visattn.viz.maps.legend import BACKGROUND, MUTED, TEXT
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.resize import resize_image, resize_map

FIRST_DURATION, WORD_DURATION, LAST_DURATION = 1200, 750, 2600  # of frames, in milliseconds
_MARGIN, _FONT_SIZE, _LINE_HEIGHT, _MAX_LINES = 12, 17, 28, 4
_WIDTH, _MIN_WIDTH = 480, 160  # in pixels
_MAX_ASPECT = 2.0  # height of the image / width of the frame


def caption_gif(
    image: ImageLike, caption: Caption, *, max_bytes: int = 1_500_000, **options: Any
) -> bytes:
    """Return an animated GIF: the image, a frame for each word, and the mean map over words.

    All frames share one value range and one palette. The caption is below the image, with the
    current word highlighted. If the file would exceed `max_bytes`, the frames are made smaller.

    Args:
        image: The original image.
        caption: Its caption.
        max_bytes: Maximum size of the file.
        options: Fields of `DrawOptions`, such as `width`, 480 by default and at least 160.

    Raises:
        ValueError: If the width is too small.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> caption_gif(np.zeros((30, 40, 3), np.uint8), result)[:6]
        b'GIF89a'
    """
    check_one_image(caption, "a GIF")
    pixels, caption = read_image(image).pixels, caption.drawable()
    drawing = DrawOptions(**{"width": _WIDTH, **options}).otherwise(
        vmax=caption.display_range()[1], smooth=caption.smooth
    )
    words, width = caption.words, drawing.width
    if width < _MIN_WIDTH:
        raise ValueError(f"an animation must be at least {_MIN_WIDTH} pixels wide, got {width}")
    shown = animation_frame_size(pixels.shape[:2], width)
    maps = caption.maps.resize_to_image(shown, smooth=bool(drawing.smooth)).numpy()
    durations = [FIRST_DURATION, *[WORD_DURATION] * len(words), LAST_DURATION]
    while True:
        size = animation_frame_size(pixels.shape[:2], width)
        small = resize_image(pixels, size)
        resized = [resize_map(values, size) for values in (*maps, np.mean(maps, axis=0))]
        images = [small, *(drawing.draw(small, values) for values in resized)]
        gif = encode_gif(_frames_with_caption(images, words, width), durations, size[0])
        if len(gif) <= max_bytes or width == _MIN_WIDTH:
            return gif
        width = max(_MIN_WIDTH, int(width * 0.95 * (max_bytes / len(gif)) ** 0.5))


def animation_frame_size(image_size: tuple[int, int], width: int) -> tuple[int, int]:
    """Return the height and width of the image in an animation.

    Args:
        image_size: Height and width of the image.
        width: Width of the animation in pixels. A very tall image is narrower.

    Example:
        >>> animation_frame_size((480, 640), 480)
        (360, 480)
    """
    image_height, image_width = image_size
    scale = min(width / image_width, _MAX_ASPECT * width / image_height)
    return max(1, round(image_height * scale)), max(1, round(image_width * scale))


def _frames_with_caption(
    images: Sequence[UInt8[np.ndarray, "y x 3"]], words: Sequence[str], width: int
) -> list[Image.Image]:
    """Return frames: each image above the caption, with its word highlighted."""
    positions, text_height = _word_positions(words, width)
    frames = []
    for index, image in enumerate(images):
        frame = Image.new("RGB", (width, image.shape[0] + text_height), BACKGROUND)
        frame.paste(Image.fromarray(image), ((width - image.shape[1]) // 2, 0))
        pen = ImageDraw.Draw(frame)
        for number, (word, x, y, end) in enumerate(positions, start=1):
            top = image.shape[0] + y
            current = number == index
            if current:
                pen.rounded_rectangle((x - 5, top - 4, end + 5, top + _FONT_SIZE + 6), 5, TEXT)
            first_or_last = index in (0, len(images) - 1)
            color = BACKGROUND if current else TEXT if first_or_last else MUTED
            pen.text((x, top), word, color, load_font(_FONT_SIZE))
        frames.append(frame)
    return frames


def _word_positions(
    words: Sequence[str], width: int
) -> tuple[list[tuple[str, float, int, float]], int]:
    """Return each word with its left, top and right, and the height of the text.

    A caption with more than the maximum number of lines ends in an ellipsis.
    """
    font = load_font(_FONT_SIZE)
    space, line_width = font.getlength(" ") + 6, width - 2 * _MARGIN
    lines: list[list[tuple[str, float]]] = [[]]
    for word in words:
        text = truncate_text(word, font, line_width)
        text_width = font.getlength(text)
        if lines[-1] and sum(w + space for _, w in lines[-1]) + text_width > line_width:
            lines.append([])
        lines[-1].append((text, text_width))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES - 1][-1] = (ELLIPSIS, font.getlength(ELLIPSIS))
    positions = []
    for number, line in enumerate(lines[:_MAX_LINES]):
        x = (width - sum(w for _, w in line) - space * (len(line) - 1)) / 2
        for text, text_width in line:
            positions.append((text, x, _MARGIN + number * _LINE_HEIGHT, x + text_width))
            x += text_width + space
    return positions, 2 * _MARGIN + min(len(lines), _MAX_LINES) * _LINE_HEIGHT - 6
