"""Interactive HTML page of a caption: the attention map of each word."""

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.geometry.affine import Box
from visattn.images.reader import ImageLike
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.viz.caption_images import DrawnImage, drawn_images
from visattn.viz.captions import statistics_figures
from visattn.viz.html.document import (
    PageOptions,
    PageParts,
    escape_text,
    image_data_url,
    photo_page,
)
from visattn.viz.text import sanitize_text

_WORD, _CAPTION = 60, 1_000  # characters
_STRONGEST = 6  # words of the text that the page names for each word
_BOXES = (
    '<label class="tick" id="outlines"><input type="checkbox" id="outlined" checked>Boxes</label>'
)
_SCALES = (
    '<div id="ends" class="segments" role="radiogroup" aria-label="Upper end of the scale">'
    '<button type="button" role="radio" title="One scale for all words, '
    'up to the median of their peaks">One scale</button>'
    '<button type="button" role="radio" title="Each word up to its own peak">Each its own</button>'
    '<button type="button" role="radio" title="One scale for all words, '
    'up to the greatest peak">Maximum</button>'
    "</div>"
)
_TITLES = {
    "text": "Attention to the prompt and to earlier words",
    "heads": "Layers and heads that read the photo",
}


def caption_html(
    image: ImageLike | Sequence[ImageLike],
    caption: Caption,
    *,
    boxes: MapBoxes | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with the attention map of each word of a caption.

    Hovering, tapping or selecting a word with the arrow keys shows its map on the image, as
    `overlay` draws it. All words of all captions share one value range. Several photos of a prompt,
    or the frames of a video, stand side by side, each with its share of the map that is shown.

    Args:
        image: The original image; a list of the photos of a prompt; or a video file or its frames.
        caption: Its caption; the `alternatives` can be selected on the page. The boxes and scores
            of its `phrases` are shown.
        boxes: Boxes of the maps of the first caption, from `caption.maps.boxes()`, which are
            outlined.
        options: Fields of `PageOptions`, such as `name`, `index`, `colormap` and `vmax`.

    Raises:
        ValueError: If a caption belongs to images of other sizes or number, or boxes are given for
            several.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> caption_html(np.zeros((30, 40, 3), np.uint8), result)[:15]
        '<!doctype html>'
    """
    geometry = caption.maps.geometry
    if geometry is None:
        raise ValueError(
            "the maps of the caption have no geometry; `visattn.caption` returns placed maps"
        )
    images = drawn_images(image, caption)
    several = not caption.is_of_single_photo
    if several and (caption.phrases or boxes is not None):
        raise ValueError("boxes are those of one photo; the caption has several images")
    page = PageOptions(**options).otherwise(
        name=_page_name(caption, images), vmax=caption.display_range()[1], smooth=caption.smooth
    )
    if not (page.vmax or 0.0) > 0:
        raise ValueError(f"vmax must be above 0, got {page.vmax}")
    captions = [each.drawable() for each in (caption, *caption.alternatives)]
    maps = [_joined_maps(each) for each in captions]
    outlined = [relative_boxes(boxes), *(() for _ in caption.alternatives)]
    return photo_page(
        images[0].pixels,
        geometry,
        PageParts(
            "viewer.html",
            ["strip.js", "viewer.js"],
            data={
                "grid": list(maps[0].shape[1:]),
                "scale": [0.0, page.vmax],
                "peak": max(float(each.max()) for each in maps),
                "captions": [
                    _caption_data(*each) for each in zip(captions, maps, outlined, strict=True)
                ],
                "smooth": page.smooth,
                "gateSymbol": caption.gate_symbol,
                "notes": sanitize_text(caption.notes, _CAPTION),
                "quantity": caption.quantity,
                "even": _even(caption),
            },
            texts={"caption": sanitize_text(captions[0].text, _CAPTION)},
            markup={"statistics": "".join(
                _figure(_TITLES[kind], np.asarray(figure.image))
                for kind, figure in statistics_figures(caption).items()
            )},
            model=caption.maps.info.model,
            switches=_BOXES,
            scales=_SCALES,
            method="Attention weights of the words",
        ),
        page,
        images if several else (),
    )  # fmt: skip


def relative_boxes(boxes: MapBoxes | None) -> tuple[tuple[Box, ...], ...]:
    """Return the boxes of each map as fractions of the image size; () without boxes.

    Args:
        boxes: Boxes of maps.
    """
    if boxes is None:
        return ()
    height, width = boxes.image_size
    return tuple(
        tuple((x0 / width, y0 / height, x1 / width, y1 / height) for x0, y0, x1, y1 in each)
        for each in boxes.per_map()
    )


def _page_name(caption: Caption, images: Sequence[DrawnImage]) -> str:
    """Return the name of the photo or of the video, or the names of the photos."""
    if caption.is_video:
        return Path(caption.image).name
    return ", ".join(image.label for image in images)


def _even(caption: Caption) -> list[float | str] | None:
    """Return the value that the scale marks, and its meaning: that of a map without preference."""
    if (even := caption.maps.info.even) is not None:
        return [float(even[0]), str(even[1])]
    if caption.quantity != "attention":
        return None
    cells = sum(each.values.shape[1:].numel() for each in caption.image_maps)
    return [1 / cells, "uniform attention"]


def _figure(title: str, pixels: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return the markup of a figure below the photo."""
    address, (height, width) = image_data_url(pixels, longest=max(pixels.shape[:2]))
    title = escape_text(title)
    return (
        f'<section class="card wide"><h3>{title}</h3><div class="scroll">'
        f'<img src="{address}" width="{width}" height="{height}" alt="{title}"></div></section>'
    )


def _joined_maps(caption: Caption) -> np.ndarray:
    """Return the maps of the words; of several images `[t, 1, cells]`, one after the other."""
    if caption.is_of_single_photo:
        return caption.maps.values.numpy()
    # The page has one array per word; its script cuts it where the cells of an image end.
    return torch.cat([each.values.flatten(1) for each in caption.image_maps], 1)[:, None].numpy()


def _caption_data(
    caption: Caption, maps: np.ndarray, boxes: tuple[tuple[Box, ...], ...]
) -> dict[str, Any]:
    """Return the data for the script; maps as base64 of little-endian float32."""
    text = caption.text_attention
    strongest = [] if text is None else [
        text.strongest(word, _STRONGEST) for word in range(len(caption.words))
    ]  # fmt: skip
    return {
        "words": [sanitize_text(word, _WORD) for word in caption.words],
        "spaces": list(caption.spaces),
        "chances": [math.exp(min(0.0, log_prob)) for log_prob in caption.log_probs],
        "gates": list(caption.gates) if caption.has_gates else [],
        "score": caption.score,
        "finished": caption.finished,
        "maps": base64.b64encode(maps.astype("<f4").tobytes()).decode(),
        "phrases": [phrase._asdict() for phrase in caption.phrases],
        "boxes": boxes,
        "texts": [[[sanitize_text(text, _WORD), weight] for text, weight in row]
                  for row in strongest],
    }  # fmt: skip
