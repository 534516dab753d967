"""Figure of a caption of several photos or of a video: the maps of a word side by side."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.results.captions import Caption
from visattn.viz.captions.images import DrawnImage, image_shares
from visattn.viz.layout.grid import MARGIN, draw_title, title_bottom
from visattn.viz.layout.text import format_probability, load_font, truncate_text
from visattn.viz.layout.tiles import MIN_WIDTH, Gate, draw_gate
from visattn.viz.maps.legend import (
    ACCENT,
    BACKGROUND,
    LEGEND_HEIGHT,
    MUTED,
    SMALL,
    TEXT,
    TRACK,
    Legend,
)
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.resize import resize_image

_LABELS, _GAP, _ROW_GAP = 0.15, 8, 18  # of the width; pixels
_WORD_SIZE, _BARS, _TEXT_HEIGHT = 17, 30, 24
_MAX_COLUMNS, _MAX_HEIGHT = 12, 260


def image_panel(
    images: Sequence[DrawnImage], caption: Caption, drawing: DrawOptions
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per word: its maps on all images, on one color scale.

    Below each word bars show its share in every image, the highest bar that of the whole figure.
    Of more than 12 images, 12 are drawn, evenly spaced; the bars are those of all.

    Args:
        images: The photos of a prompt, or frames of a video, with the maps on each.
        caption: The caption, with at least one word.
        drawing: How maps are drawn, with `vmax`; at least 480 pixels wide.

    Raises:
        ValueError: If the figure is too narrow.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words", Geometry.identity((30, 40)))
        >>> caption = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True, further_maps=(maps,))
        >>> photo = DrawnImage(np.zeros((30, 40, 3), np.uint8), "a.jpg", maps)
        >>> image_panel([photo, photo], caption, DrawOptions(vmax=1.0)).shape[1]
        1200
    """
    width, words, shares = drawing.width, caption.words, image_shares(caption)
    if width < MIN_WIDTH:
        raise ValueError(f"a figure must be at least {MIN_WIDTH} pixels wide, got {width}")
    count = min(len(images), _MAX_COLUMNS)
    chosen = [number * len(images) // count for number in range(count)]
    subtitle = "" if count == len(images) else f"{count} of {len(images)} frames are drawn"
    left, places, sizes = _columns([images[number].pixels.shape[:2] for number in chosen], width)
    row = max([_TEXT_HEIGHT + _BARS + 36, *(size[0] for size in sizes)]) + _ROW_GAP
    title = " ".join(words)
    first = title_bottom(title, width, subtitle=subtitle)
    top = first + max(size[0] for size in sizes) + _TEXT_HEIGHT + 10
    page = Image.new("RGB", (width, top + len(words) * row + LEGEND_HEIGHT), BACKGROUND)
    draw_title(page, title, subtitle)
    pen = ImageDraw.Draw(page)
    maps = list[np.ndarray]()
    for number, x, size in zip(chosen, places, sizes, strict=True):
        each = images[number]
        small = resize_image(each.pixels, size)
        page.paste(Image.fromarray(small), (x, first))
        shown = truncate_text(each.label, load_font(SMALL), size[1])
        pen.text((x, first + size[0] + 6), shown, MUTED, load_font(SMALL))
        maps.append(each.maps.resize_to_image(size, smooth=bool(drawing.smooth)).numpy())
        for word, values in enumerate(maps[-1]):
            drawn = Image.fromarray(drawing.draw(small, values))
            page.paste(drawn, (x, top + word * row))
    for word, text in enumerate(words):
        log_probs = caption.log_probs
        probability = format_probability(log_probs[word]) if log_probs else ""
        place = (MARGIN, top + word * row)
        _write_word(pen, place, left - MARGIN - 16, text, probability)
        if caption.has_gates:
            gate = Gate(caption.gates[word], caption.gate_symbol)
            draw_gate(pen, place, left - MARGIN - 16, gate)
        bars = (MARGIN, place[1] + (56 if caption.has_gates else 36), left - MARGIN - 16)
        _draw_bars(pen, bars, shares[word] / max(float(shares.max()), 1e-12))
    vmax = drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (drawing.vmin, vmax),
        caption.quantity,
        clipped=any(float(np.nanmax(each, initial=drawing.vmin)) > vmax for each in maps),
        has_nan=any(bool(np.isnan(each).any()) for each in maps),
        gate_symbol=caption.gate_symbol if caption.has_gates else None,
    )
    legend.draw(page, (MARGIN, page.height - LEGEND_HEIGHT))
    return np.array(page)


def _columns(
    sizes: Sequence[tuple[int, int]], width: int
) -> tuple[int, list[int], list[tuple[int, int]]]:
    """Return where the images of a row begin, the left of each, and their sizes of one height."""
    left = MARGIN + max(130, round(_LABELS * width))
    aspects = [size[1] / size[0] for size in sizes]
    space = width - MARGIN - left - _GAP * (len(sizes) - 1)
    height = max(1, min(_MAX_HEIGHT, int(space / sum(aspects))))
    drawn = [(height, max(1, round(height * aspect))) for aspect in aspects]
    places = [left]
    for size in drawn[:-1]:
        places.append(places[-1] + size[1] + _GAP)
    return left, places, drawn


def _write_word(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, word: str, probability: str
) -> None:
    (x, y), small, large = place, load_font(SMALL), load_font(_WORD_SIZE)
    length = small.getlength(probability)
    pen.text((x + width - length, y + 5), probability, MUTED, small)
    pen.text((x, y), truncate_text(word, large, width - length - 10), TEXT, large)


def _draw_bars(
    pen: ImageDraw.ImageDraw, place: tuple[int, int, int], shares: Float[np.ndarray, " p"]
) -> None:
    """Draw a bar per image: its height is the share of the word in it."""
    x, y, width = place
    pen.line((x, y + _BARS, x + width, y + _BARS), TRACK)
    step = width / len(shares)
    wide = min(max(1.0, 0.7 * step), 24.0)
    for number, share in enumerate(shares):
        center = x + (number + 0.5) * step
        top = y + _BARS * (1 - min(max(float(share), 0.0), 1.0))
        pen.rectangle((center - wide / 2, min(top, y + _BARS - 1), center + wide / 2, y + _BARS),
                      ACCENT)  # fmt: skip
