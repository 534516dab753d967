"""Figures of captions: the photo, and the map of each word on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.images.reader import ImageLike
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.viz.captions.head_tables import head_overview_figure
from visattn.viz.captions.image_panel import image_panel
from visattn.viz.captions.images import drawn_images
from visattn.viz.captions.text_matrix import text_attention_figure
from visattn.viz.layout.grid import compute_tile_grid
from visattn.viz.layout.text import format_probability
from visattn.viz.layout.tiles import WORDS, WORDS_AND_GATES, Gate, Tile, size_text, tile_figure
from visattn.viz.maps.legend import Legend
from visattn.viz.maps.marks import draw_frame
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.resize import resize_image


def caption_figure(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and one overlay per word, on one color scale.

    Of several photos, or of a video, each word has a row with its maps on all of them.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption.
        boxes: Boxes of its maps, from `caption.maps.boxes()`, which are outlined.
        options: Fields of `DrawOptions`, such as `width`, `colormap` and `vmax`.

    Raises:
        ValueError: If the caption belongs to images of other sizes or number, or boxes are given
            for several.

    Example:
        >>> from visattn.models import SPECIAL_TOKENS, ShowAttendTell, SmallEncoder
        >>> from visattn.pipelines.captioning import caption
        >>> words = (*SPECIAL_TOKENS, "red")
        >>> model = ShowAttendTell(words, SmallEncoder((16, 16), channels=4), hidden_size=8)
        >>> photo = np.zeros((30, 90, 3), np.uint8)
        >>> [said] = caption(model, photo, min_length=2, max_length=2)
        >>> caption_figure(photo, said, width=600).shape[1]
        600
    """
    caption = caption.drawable()
    images = drawn_images(image, caption)
    drawing = DrawOptions(**options).otherwise(
        vmax=caption.display_range()[1], smooth=caption.smooth
    )
    if not caption.is_of_single_photo:
        if boxes is not None:
            raise ValueError("boxes are those of one photo; the caption has several images")
        return image_panel(images, caption, drawing)
    pixels, count = images[0].pixels, len(caption.words)
    grid = compute_tile_grid((pixels.shape[0], pixels.shape[1]), count + 1, drawing.width)
    small = resize_image(pixels, grid.tile_size)
    values = caption.maps.resize_to_image(grid.tile_size, smooth=bool(drawing.smooth)).numpy()
    drawn = [drawing.draw(small, each) for each in values]
    if boxes is not None:
        per_word = zip(drawn, boxes.per_map(), strict=True)
        drawn = [_outlined(*each, boxes.image_size) for each in per_word]
    asides = [format_probability(each) for each in caption.log_probs] or [""] * count
    gates: list[Gate | None] = [None] * count
    if caption.has_gates:
        gates = [Gate(each, caption.gate_symbol) for each in caption.gates]
    vmax = drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (drawing.vmin, vmax),
        caption.quantity,
        clipped=float(np.nanmax(values, initial=drawing.vmin)) > vmax,
        has_nan=bool(np.isnan(values).any()),
        gate_symbol=caption.gate_symbol if caption.has_gates else None,
    )
    words = zip(drawn, caption.words, asides, gates, strict=True)
    return tile_figure(
        [
            Tile(small, note=size_text(pixels)),
            *(Tile(tile, word, aside=aside, gate=gate) for tile, word, aside, gate in words),
        ],
        grid,
        title=" ".join(caption.words),
        legends=[legend],
        text=WORDS_AND_GATES if caption.has_gates else WORDS,
        width=drawing.width,
    )


def _outlined(
    tile: UInt8[np.ndarray, "y x 3"], boxes: Sequence[Sequence[float]], size: tuple[int, int]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return a tile with boxes that are in pixels of an image of a size."""
    y, x = tile.shape[0] / size[0], tile.shape[1] / size[1]
    for left, top, right, bottom in boxes:
        tile = draw_frame(tile, (left * x, top * y, right * x, bottom * y))
    return tile


def statistics_figures(caption: Caption) -> dict[str, UInt8[np.ndarray, "height width 3"]]:
    """Return the figures of the statistics that a caption has, by the ending of their files.

    Args:
        caption: A caption with words.
    """
    figures: dict[str, Any] = {}
    if caption.text_attention is not None and caption.words:
        figures["text"] = text_attention_figure(caption)
    if caption.head_overview is not None:
        figures["heads"] = head_overview_figure(caption)
    return figures
