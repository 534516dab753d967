"""Figures of captions: the photo, and the map of each word on it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.images.reader import ImageLike
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.viz.captions.head_tables import head_overview_figure
from visattn.viz.captions.image_panel import image_panel, image_tile_sizes
from visattn.viz.captions.images import DrawnImage, drawn_images, image_shares
from visattn.viz.captions.panel import caption_panel
from visattn.viz.captions.text_matrix import text_attention_figure
from visattn.viz.layout.grid import compute_tile_size


def caption_figure(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    width: int = 1200,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and one overlay per word, on one color scale.

    Of several photos, or of a video, each word has a row with its maps on all of them.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption.
        boxes: Boxes of its maps, from `caption.maps.boxes()`, which are outlined.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.caption_panel`.

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
    options.setdefault("vmax", caption.display_range()[1])
    options.setdefault("label", caption.quantity)
    if not caption.is_of_single_photo:
        if boxes is not None:
            raise ValueError("boxes are those of one photo; the caption has several images")
        return _image_figure(images, caption, width=width, **options)
    if boxes is not None:
        options["boxes"] = boxes.per_map()
    pixels = images[0].pixels
    shown = compute_tile_size(pixels.shape[:2], len(caption.words), width=width)
    return caption_panel(
        pixels,
        caption.words,
        caption.maps.resize_to_image(shown, smooth=caption.smooth).numpy(),
        log_probs=caption.log_probs or None,
        gates=caption.gates if caption.has_gates else None,
        gate_symbol=caption.gate_symbol,
        width=width,
        **options,
    )


def _image_figure(
    images: Sequence[DrawnImage], caption: Caption, *, width: int, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per word."""
    sizes = [(each.pixels.shape[0], each.pixels.shape[1]) for each in images]
    drawn = zip(images, image_tile_sizes(sizes, width=width), strict=True)
    return image_panel(
        [each.pixels for each in images],
        [each.label for each in images],
        caption.words,
        [each.maps.resize_to_image(size, smooth=caption.smooth).numpy() for each, size in drawn],
        image_shares(caption),
        log_probs=caption.log_probs,
        gates=caption.gates if caption.has_gates else None,
        gate_symbol=caption.gate_symbol,
        width=width,
        **options,
    )


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
