"""Interactive HTML page of questions about a photo: answers, and the map of each hop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.map_boxes import MapBoxes
from visattn.results.values import Answer, format_percent
from visattn.viz.html.caption_page import relative_boxes
from visattn.viz.html.document import (
    PageOptions,
    fact,
    map_row,
    map_view,
    own_geometry,
    photo_page,
)


def answer_html(
    image: ImageLike,
    answers: Sequence[Answer],
    *,
    boxes: Sequence[MapBoxes | None] | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with answers and the attention map of each hop.

    Each hop has a tab. All hops of a question share one scale, from 0 to their common maximum, so
    that diffuse and sharp maps can be compared. Words are shaded by their weight.

    Args:
        image: The original image.
        answers: Answers to questions about this image by one model.
        boxes: Boxes to outline, from the maps of each answer.
        options: Fields of `PageOptions`, such as `name`, `index` and `colormap`.

    Raises:
        ValueError: If there is no answer, or the maps belong to an image of another size.

    Example:
        >>> answer = Answer("<Red>?", ("red",), (("yes", 0.9), ("no", 0.1)), None)
        >>> page = answer_html(np.zeros((30, 40, 3), np.uint8), [answer])
        >>> "&lt;Red&gt;?" in page, "<Red>" in page
        (True, False)
    """
    original = read_image(image)
    if not answers:
        raise ValueError("a page needs at least one question")
    places = (each.maps.geometry for each in answers if each.maps is not None)
    place = next(filter(None, places), Geometry.identity(original.size))
    page = PageOptions(**options).otherwise(name=Path(original.name).name, smooth=True)
    outlined = zip(answers, boxes or [None] * len(answers), strict=True)
    return photo_page(
        original.pixels, place, [_question_row(*each, place) for each in outlined], page,
        kind="hops", model=next((each.maps.info.model for each in answers if each.maps), ""),
        others="Questions about this photo",
    )  # fmt: skip


def _question_row(answer: Answer, boxes: MapBoxes | None, base: Geometry) -> dict[str, Any]:
    """Return the maps of the hops of a question, on one scale."""
    maps = np.zeros((0, 1, 1)) if answer.maps is None else answer.maps.values.numpy()
    labels, place = (answer.maps.labels, answer.maps.geometry) if answer.maps else ((), None)
    weights = torch.zeros(len(maps), 0) if answer.word_weights is None else answer.word_weights
    outlines = relative_boxes(boxes) or [()] * len(maps)
    return map_row(
        [
            map_view(
                values, label, (0.0, float(maps.max()) or 1.0), even=1 / values.size,
                weights=shares.tolist(), outlines=outlined,
                **own_geometry(place, base),
            )
            for values, label, shares, outlined in zip(maps, labels, weights, outlines, strict=True)
        ],
        answer.question,
        score=answer.text,
        answer=answer.text,
        facts=[fact(text, format_percent(share), share) for text, share in answer.answers],
        tokens=answer.words,
        unknown=answer.unknown,
        most=float(weights.max()) if weights.numel() else 1.0,
        notes=answer.notes,
    )  # fmt: skip
