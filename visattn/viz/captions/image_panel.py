"""Figure of a caption of several photos or of a video: the maps of a word side by side."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.results.captions import Caption
from visattn.viz.captions.images import DrawnImage, image_shares
from visattn.viz.layout.grid import MARGIN, TileGrid
from visattn.viz.layout.text import format_probability, load_font, truncate_text
from visattn.viz.layout.tiles import (
    WORDS,
    Gate,
    TextBelow,
    Tile,
    draw_gate,
    tile_figure,
    write_name,
)
from visattn.viz.maps.legend import ACCENT, BACKGROUND, MUTED, SMALL, TRACK, Legend
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.resize import resize_image

_LABELS, _GAP, _LINE = 0.15, 8, 24  # of the width; pixels
_BARS, _WORD_HEIGHT = 30, 90
_NO_TEXT = TextBelow(0, 15, 0, 0)
_MAX_COLUMNS, _MAX_HEIGHT = 12, 260


def image_panel(
    images: Sequence[DrawnImage], caption: Caption, drawing: DrawOptions
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per word: its maps on all images, on one color scale.

    Below each word bars show its share in every image, the highest bar that of the whole figure. Of
    more than 12 images, 12 are drawn, evenly spaced; the bars are those of all.

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
    shares = image_shares(caption)
    shares = shares / max(float(shares.max()), 1e-12)
    count = min(len(images), _MAX_COLUMNS)
    chosen = [images[number * len(images) // count] for number in range(count)]
    row = _Row([each.pixels.shape[:2] for each in chosen], max(1, drawing.width - 2 * MARGIN))
    small = [resize_image(each.pixels, size) for each, size in zip(chosen, row.sizes, strict=True)]
    maps = [
        each.maps.resize_to_image(size, smooth=bool(drawing.smooth)).numpy()
        for each, size in zip(chosen, row.sizes, strict=True)
    ]
    tiles = [Tile(row.with_labels(small, [each.label for each in chosen]))]
    for word in range(len(caption.words)):
        drawn = [drawing.draw(*each) for each in zip(small, (m[word] for m in maps), strict=True)]
        tiles.append(Tile(row.with_word(drawn, caption, word, shares[word])))
    vmax = drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (drawing.vmin, vmax),
        caption.quantity,
        clipped=any(float(np.nanmax(each, initial=drawing.vmin)) > vmax for each in maps),
        has_nan=any(bool(np.isnan(each).any()) for each in maps),
        gate_symbol=caption.gate_symbol if caption.has_gates else None,
    )
    return tile_figure(
        tiles,
        TileGrid(1, len(tiles), row.width, (row.height, row.width)),
        title=" ".join(caption.words),
        subtitle="" if count == len(images) else f"{count} of {len(images)} frames are drawn",
        legends=[legend],
        text=_NO_TEXT,
        width=drawing.width,
    )


class _Row:
    """A row of images of one height, with room for a word at the left."""

    def __init__(self, sizes: Sequence[tuple[int, int]], width: int) -> None:
        self.width, self.left = width, max(130, round(_LABELS * width))
        aspects = [size[1] / size[0] for size in sizes]
        space = width - self.left - _GAP * (len(sizes) - 1)
        height = max(1, min(_MAX_HEIGHT, int(space / sum(aspects))))
        self.sizes = [(height, max(1, round(height * aspect))) for aspect in aspects]
        self.height = max(height + _LINE, _WORD_HEIGHT)

    def _draw(self, images: Sequence[UInt8[np.ndarray, "y _x 3"]]) -> tuple[Image.Image, list[int]]:
        """Return the images side by side, and the left of each."""
        row, lefts = Image.new("RGB", (self.width, self.height), BACKGROUND), [self.left]
        for image in images:
            row.paste(Image.fromarray(image), (lefts[-1], 0))
            lefts.append(lefts[-1] + image.shape[1] + _GAP)
        return row, lefts

    def with_labels(
        self, images: Sequence[UInt8[np.ndarray, "y _x 3"]], labels: Sequence[str]
    ) -> UInt8[np.ndarray, "y2 x2 3"]:
        """Return photos with their names below."""
        row, lefts = self._draw(images)
        pen, font = ImageDraw.Draw(row), load_font(SMALL)
        for image, left, label in zip(images, lefts, labels, strict=False):
            text = truncate_text(label, font, image.shape[1])
            pen.text((left, image.shape[0] + 6), text, MUTED, font)
        return np.array(row)

    def with_word(
        self,
        images: Sequence[UInt8[np.ndarray, "y _x 3"]],
        caption: Caption,
        word: int,
        shares: Float[np.ndarray, " p"],
    ) -> UInt8[np.ndarray, "y2 x2 3"]:
        """Return the maps of a word, with its probability, gate and shares at the left."""
        row, _ = self._draw(images)
        pen, width, top = ImageDraw.Draw(row), self.left - 16, 36
        aside = format_probability(caption.log_probs[word]) if caption.log_probs else ""
        write_name(pen, Tile(images[0], caption.words[word], aside=aside), (0, 0), width, WORDS)
        if caption.has_gates:
            draw_gate(pen, (0, 0), width, Gate(caption.gates[word], caption.gate_symbol))
            top = 56
        bottom = top + _BARS
        pen.line((0, bottom, width, bottom), TRACK)
        step = width / len(shares)
        wide = min(max(1.0, 0.7 * step), 24.0)
        for number, share in enumerate(shares):
            left = (number + 0.5) * step - wide / 2
            high = _BARS * min(max(float(share), 0.0), 1.0)
            pen.rectangle((left, min(bottom - high, bottom - 1), left + wide, bottom), ACCENT)
        return np.array(row)
