"""Interactive HTML page of a caption: the attention map of each word."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from visattn.geometry.affine import Box, Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.captions import Caption
from visattn.results.map_boxes import MapBoxes
from visattn.viz.html.document import PageOptions, PageParts, own_geometry, photo_page
from visattn.viz.text import sanitize_text

_WORD, _CAPTION = 60, 1_000  # characters
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


def caption_html(
    image: ImageLike,
    caption: Caption | Mapping[str, Caption],
    *,
    boxes: MapBoxes | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with the attention map of each word of a caption.

    Hovering, tapping or selecting a word with the arrow keys shows its map on the image, as
    `overlay` draws it. All words of all captions of a model share one value range.

    Args:
        image: The original image.
        caption: Its caption; the `alternatives` can be selected on the page. The boxes and scores
            of its `phrases` are shown. Or captions of several models by their names, which have a
            row of words each.
        boxes: Boxes of the maps of the first caption, from `caption.maps.boxes()`, which are
            outlined.
        options: Fields of `PageOptions`, such as `name`, `index`, `colormap` and `vmax`.

    Raises:
        ValueError: If a caption belongs to an image of another size.

    Example:
        >>> from visattn import AttentionMap, Geometry
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> caption_html(np.zeros((30, 40, 3), np.uint8), result)[:15]
        '<!doctype html>'
    """
    models = caption if isinstance(caption, Mapping) else {"": caption}
    best = next(iter(models.values()))
    geometry = best.maps.geometry
    if geometry is None:
        raise ValueError(
            "the maps of the caption have no geometry; `visattn.caption` returns placed maps"
        )
    photo = read_image(image)
    page = PageOptions(**options).otherwise(name=Path(photo.name).name, smooth=best.smooth)
    data: list[dict[str, Any]] = []
    for each in models.values():
        # Of one model, all candidates are on the page; of several, the best of each.
        shown = [each, *(each.alternatives if len(models) == 1 else ())]
        data += _captions_data([one.drawable() for one in shown], page.vmax, geometry)
    data[0]["boxes"] = relative_boxes(boxes)
    return photo_page(
        photo.pixels,
        geometry,
        PageParts(
            "viewer.html",
            ["viewer.js"],
            data={
                "grid": data[0]["grid"],
                "captions": data,
                "models": [sanitize_text(name, _CAPTION) for name in models if name],
                "smooth": page.smooth,
                "notes": sanitize_text(best.notes, _CAPTION),
            },
            texts={"caption": sanitize_text(best.drawable().text, _CAPTION)},
            model=best.maps.info.model,
            switches=_BOXES,
            scales=_SCALES,
        ),
        page,
    )


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


def _captions_data(
    captions: Sequence[Caption], vmax: float | None, base: Geometry
) -> list[dict[str, Any]]:
    """Return the data of the captions of a model, which share a scale, for the script."""
    best = captions[0]
    maps = [each.maps.values.numpy() for each in captions]
    top = best.maps.display_range()[1] if vmax is None else vmax
    if not top > 0:
        raise ValueError(f"vmax must be above 0, got {top}")
    cells = best.maps.values.shape[1:].numel()
    shared = {
        "grid": list(maps[0].shape[1:]),
        **own_geometry(best.maps.geometry, base),
        "scale": [0.0, top],
        "peak": max(float(each.max()) for each in maps),
        "gateSymbol": best.gate_symbol,
        "quantity": best.quantity,
        "smooth": best.smooth,
        # That of a map without preference, which the scale marks.
        "even": 1 / cells if best.quantity == "attention" else None,
    }
    return [_caption_data(*each) | shared for each in zip(captions, maps, strict=True)]


def _caption_data(caption: Caption, maps: np.ndarray) -> dict[str, Any]:
    """Return the data for the script; maps as base64 of little-endian float32."""
    return {
        "words": [sanitize_text(word, _WORD) for word in caption.words],
        "spaces": list(caption.spaces),
        "chances": [math.exp(min(0.0, log_prob)) for log_prob in caption.log_probs],
        "gates": list(caption.gates) if caption.has_gates else [],
        "score": caption.score,
        "finished": caption.finished,
        "maps": base64.b64encode(maps.astype("<f4").tobytes()).decode(),
        "phrases": [asdict(phrase) for phrase in caption.phrases],
        "boxes": (),
    }
