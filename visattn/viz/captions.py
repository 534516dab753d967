"""Figures of captions: the photo with the map of each word."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from jaxtyping import UInt8

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import format_end
from visattn.viz.canvas import Canvas
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.text import format_probability, join_notes
from visattn.viz.tiles import (
    WORDS,
    WORDS_AND_GATES,
    Gate,
    Legend,
    Tile,
    compute_tile_grid,
    size_text,
    tile_figure,
)

WordScale = Literal["shared", "own", "greatest"]
WORD_SCALES: tuple[WordScale, ...] = ("shared", "own", "greatest")


class _Colors:
    """How the maps of words are drawn: upper end of the scale of each, and the legend.

    Args:
        caption: The caption.
        drawing: Options, with `vmax` for the shared scale.
        scales: See `caption_figure`.
    """

    def __init__(self, caption: Caption, drawing: DrawOptions, scales: WordScale) -> None:
        if scales not in WORD_SCALES:
            raise ValueError(f"scales must be one of {', '.join(WORD_SCALES)}, got {scales!r}")
        peaks = caption.maps.values.flatten(1).nan_to_num(0.0).amax(1).tolist()
        self.peak = max(peaks)
        shared = self.peak if scales == "greatest" else drawing.vmax or 1.0
        ends = peaks if scales == "own" else [shared] * len(peaks)
        self.ends = [end if end > drawing.vmin else drawing.vmin + 1.0 for end in ends]
        self.caption, self.drawing, self.scales = caption, drawing, scales

    def draw(self, image: np.ndarray, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return an image with the map of each word on it."""
        return self.drawing.draw_each(image, maps, self.ends)

    def aside(self, word: int) -> str:
        """Return the probability of a word, and the end of its scale if each has its own."""
        log_probs = self.caption.log_probs
        chance = format_probability(log_probs[word]) if log_probs else ""
        end = f"to {format_end(self.ends[word])}" if self.scales == "own" else ""
        return join_notes(end, chance)

    def legend(self, *, has_nan: bool) -> Legend:
        """Return the color bar, with swatches for what else the figure shows."""
        caption, vmin, end = self.caption, self.drawing.vmin, self.ends[0]
        own = self.scales == "own"
        return Legend(
            replace(self.drawing, vmax=end).draw,
            (vmin, end),
            caption.quantity,
            clipped=self.peak > end * (1 + 1e-5) and not own,
            has_nan=has_nan,
            gate_symbol=caption.gate_symbol if caption.has_gates else None,
            end_labels=(format_end(vmin), "peak of each word") if own else None,
        )


def caption_legend(caption: Caption, *, has_nan: bool) -> Legend:
    """Return the color bar of the words of a caption on one scale.

    Args:
        caption: A caption with words.
        has_nan: Whether the model did not see all of the photo.
    """
    drawing = DrawOptions(vmax=caption.maps.display_range()[1])
    return replace(_Colors(caption, drawing, "shared").legend(has_nan=has_nan), gate_symbol=None)


def caption_figure(
    image: ImageLike,
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    scales: WordScale = "shared",
    note: str = "",
    **options: Any,
) -> Figure:
    """Return a figure of the image and one overlay per word.

    The subtitle says which share of the photo the model saw, if it is not all of it.

    Args:
        image: The original image.
        caption: Its caption.
        boxes: Boxes of its maps, from `caption.maps.boxes()`, which are outlined.
        scales: Upper end of the colors: `shared`, `vmax` for all words, by default the median of
            their peaks; `own`, the peak of each word; `greatest`, the greatest of all peaks.
        note: Second line of the title, such as the name of the captioner.
        options: Fields of `DrawOptions`, such as `width`, `scale`, `colormap` and `vmax`.

    Example:
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> from visattn.pipelines.captioning import caption
        >>> words = (*SPECIAL_TOKENS, "red")
        >>> model = ShowAttendTell(words, SmallEncoder((16, 16), channels=4), hidden_size=8)
        >>> photo = np.zeros((30, 90, 3), np.uint8)
        >>> [said] = caption(model, photo, min_length=2, max_length=2)
        >>> caption_figure(photo, said, width=600).image.width
        600
    """
    caption = caption.drawable()
    drawing = DrawOptions(**options, hatched=True).otherwise(
        vmax=caption.maps.display_range()[1], smooth=caption.smooth
    )
    draw = partial(_word_tiles, read_image(image).pixels, caption, boxes, drawing, scales, note)
    return Figure(draw, drawing.zoom)


def _word_tiles(
    pixels: UInt8[np.ndarray, "y x 3"],
    caption: Caption,
    boxes: MapBoxes | None,
    drawing: DrawOptions,
    scales: WordScale,
    note: str,
    detail: float,
) -> Canvas:
    """Return the drawing of a photo and its overlay for each word."""
    count = len(caption.words)
    geometry = caption.maps.geometry or Geometry.identity((pixels.shape[0], pixels.shape[1]))
    part = PhotoPart.of(geometry, crop=drawing.crop)
    grid = compute_tile_grid(part.size, count + 1, drawing.page_width, detail)
    whole, window = part.whole_size(grid.pixels), part.window(grid.pixels)
    small = resize_image(pixels, whole)[window]
    values = caption.maps.resize_to_image(whole, smooth=bool(drawing.smooth)).numpy()
    values = values[(..., *window)]
    colors = _Colors(caption, drawing, scales)
    drawn = colors.draw(small, list(values))
    if boxes is not None:
        drawn = [part.outline(*pair) for pair in zip(drawn, boxes.per_map(), strict=True)]
    gates: list[Gate | None] = [None] * count
    if caption.has_gates:
        gates = [Gate(each, caption.gate_symbol) for each in caption.gates]
    words = zip(drawn, caption.words, map(colors.aside, range(count)), gates, strict=True)
    return tile_figure(
        [
            Tile(small, note=size_text(pixels)),
            *(Tile(tile, word, aside=aside, gate=gate) for tile, word, aside, gate in words),
        ],
        grid,
        title=caption.text,
        subtitle=join_notes(note, geometry.seen_text),
        legends=[colors.legend(has_nan=bool(np.isnan(values).any()))],
        text=WORDS_AND_GATES if caption.has_gates else WORDS,
        width=drawing.page_width,
    )
