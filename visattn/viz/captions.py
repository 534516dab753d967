"""Figures of captions: the photo with the map of each word, and an alignment matrix."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import MapScale
from visattn.viz.detections import box_color
from visattn.viz.figures import (
    FAINT,
    LINE,
    MUTED,
    SECOND,
    Figure,
    Tile,
    halo,
    inches,
    sheet,
    show,
    style,
)
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.maps import values_at
from visattn.viz.text import fit_text, format_probability, join_notes

WordScale = Literal["shared", "own", "greatest"]
WORD_SCALES: tuple[WordScale, ...] = get_args(WordScale)


def caption_figure(
    image: ImageLike,
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    scales: WordScale = "shared",
    note: str = "",
    crop: bool = False,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
    **options: Any,
) -> Figure:
    """Return a figure of the image and one overlay per word, with probabilities and gates.

    Args:
        image: The original image.
        caption: Its caption.
        boxes: Boxes to outline, from `caption.maps.boxes()`.
        scales: Upper end of the color scale: `shared`, `vmax` for all words, by default such
            that one word in five has a higher peak; `own`, the peak of each word; `greatest`, the
            highest of all peaks.
        note: Text below, such as the name of the captioner.
        crop: See `visattn.figure`.
        width: See `visattn.figure`.
        rc: See `visattn.figure`.
        options: Fields of `DrawOptions`, such as `colormap` and `vmax`.

    Example:
        >>> from visattn.models import ShowAttendTell, SmallEncoder
        >>> from visattn.models.captioning.captioner import SPECIAL_TOKENS
        >>> from visattn.pipelines.captioning import caption
        >>> words = (*SPECIAL_TOKENS, "red")
        >>> model = ShowAttendTell(words, SmallEncoder((16, 16), channels=4), hidden_size=8)
        >>> photo = np.zeros((30, 90, 3), np.uint8)
        >>> [said] = caption(model, photo, min_length=2, max_length=2)
        >>> [ax.get_title(loc="left") for ax in caption_figure(photo, said).axes]
        ['', 'red', 'red', '']
    """
    if scales not in WORD_SCALES:
        raise ValueError(f"scales must be one of {', '.join(WORD_SCALES)}, got {scales!r}")
    caption = caption.drawable()
    drawing = DrawOptions(**options).otherwise(
        vmax=caption.maps.display_range()[1], smooth=caption.smooth
    )
    pixels, low = read_image(image).pixels, drawing.vmin
    values = caption.maps.values.flatten(1).nan_to_num(0.0)
    peaks = values.amax(1).tolist()
    shared = max(peaks) if scales == "greatest" else drawing.vmax or 1.0
    tiles = [Tile(pixels)]
    for index, word in enumerate(caption.words):
        end = peaks[index] if scales == "own" else shared
        scale = MapScale("image", low, end if end > low else low + 1.0,
                         values=(float(values[index].min()), peaks[index]))  # fmt: skip
        chance = format_probability(caption.log_probs[index]) if caption.log_probs else ""
        own = [] if boxes is None else boxes.per_map()[index]
        tiles.append(Tile(pixels, caption.maps[index], scale, word, chance, boxes=own))
    geometry = caption.maps.geometry or Geometry.identity((pixels.shape[0], pixels.shape[1]))
    gated = caption.has_gates
    result = sheet(
        [tiles],
        drawing,
        notes=(join_notes(note, geometry.seen_text),),
        below=gated * LINE * (2.0 if scales == "own" else 0.8),
        crop=crop,
        width=width,
        rc=rc,
    )
    if gated:
        with style(rc):
            for ax, gate in zip(result.axes[1:], caption.gates, strict=False):
                _draw_gate(ax, gate, caption.gate_symbol, lower=scales == "own")
    return result


def _draw_gate(ax: Axes, gate: float, symbol: str, *, lower: bool) -> None:
    """Draw a fraction as a bar with its value, below the tile of a word."""
    ax.apply_aspect()
    width, height = inches(ax)
    inch = 1 / height
    y, height = -(0.36 if lower else 0.1) * inch, 0.035 * inch
    text = f"{symbol} {gate:.2f}"
    length = 1 - (0.05 * len(text) + 0.04) / width
    for end, color in ((1.0, FAINT), (min(max(gate, 0.0), 1.0), SECOND)):
        ax.add_patch(Rectangle((0, y), length * end, height, color=color, linewidth=0,
                               transform=ax.transAxes, clip_on=False))  # fmt: skip
    ax.text(1, y + height / 2, text, ha="right", va="center", color=MUTED, fontsize=6.5,
            transform=ax.transAxes)  # fmt: skip


_OUTLINE = 0.5  # share of the peak of a map
_ROW, _ROW_GAP = 0.045, 0.015  # height and gap of matrix rows, as shares of the width of the photo


def draw_alignment(ax: Axes, image: ImageLike, caption: Caption) -> None:
    """Draw the image above its alignment matrix: the attention of each word by image columns.

    A row of the matrix is a word; each cell is below the part of the image that a grid column
    covers, and shows the attention summed over that column. On the image, the map of each word is
    outlined at half of its peak, in the color of its row.

    Args:
        ax: Axes of matplotlib; their coordinates become pixels of the image.
        image: The original image.
        caption: Its caption.
    """
    photo, caption = read_image(image), caption.drawable()
    height, width = photo.size
    row, gap, count = _ROW * width, _ROW_GAP * width, len(caption.words)
    columns = _attention_per_column(caption.maps, width)
    top = float(np.nanmax(columns, initial=0.0)) or 1.0

    def drawn(size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
        """Draw the image and the matrix, with white between rows."""
        page = np.full((*size, 3), 255, np.uint8)
        scale = size[0] / (height + count * (row + gap))
        upper = round(height * scale)
        page[:upper] = resize_image(photo.pixels, (upper, size[1]))
        at = (np.arange(size[1]) * width // size[1]).clip(max=width - 1)
        for index, values in enumerate(columns):
            first = round((height + gap + index * (row + gap)) * scale)
            last = round((height + (index + 1) * (row + gap)) * scale)
            cells = np.broadcast_to(values[at], (last - first, size[1]))
            gray = np.full((*cells.shape, 3), 150, np.uint8)
            page[first:last] = DrawOptions(vmax=top, opacity=1.0).draw(gray, cells)
        return page

    total = height + count * (row + gap)
    show(ax, (total, width), drawn)
    for index, word in enumerate(caption.words):
        color = np.array(box_color(index)) / 255
        y = height + gap + index * (row + gap) + row / 2
        ax.text(-0.01 * width, y, fit_text(word, 1.2), ha="right", va="center")
        ax.plot([0], [y], "s", color=color, markersize=4, clip_on=False)
        if caption.log_probs:
            ax.text(1.01 * width, y, format_probability(caption.log_probs[index]), va="center",
                    color=MUTED, fontsize=6.5)  # fmt: skip
        small = (max(2, height * 200 // max(photo.size)), max(2, width * 200 // max(photo.size)))
        values = values_at(caption.maps[index], small, smooth=caption.smooth)
        if (peak := float(np.nanmax(values, initial=0.0))) > 0:
            y_step, x_step = height / small[0], width / small[1]
            lines = ax.contour(
                (np.arange(small[1]) + 0.5) * x_step, (np.arange(small[0]) + 0.5) * y_step,
                values, [_OUTLINE * peak], colors=[color], linewidths=1.2,
            )  # fmt: skip
            lines.set_path_effects(halo(1.2))


def _attention_per_column(maps: AttentionMap, width: int) -> Float[np.ndarray, "t x"]:
    """Return the attention of the grid column at each pixel column; NaN outside the input."""
    sums = maps.values.sum(-2, keepdim=True).expand_as(maps.values)
    height = 64 if maps.geometry is None else maps.geometry.image_size[0]
    placed = replace(maps, values=sums).resize_to_image((height, width), smooth=False)
    columns = placed.nan_to_num(-1.0).amax(-2)  # equal in all rows inside the input
    return columns.masked_fill(columns < 0, torch.nan).numpy()
