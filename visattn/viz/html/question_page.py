"""Interactive HTML page of questions about a photo: answers, and the map of each hop."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.map_boxes import MapBoxes
from visattn.results.values import Answer
from visattn.viz.html.caption_page import relative_boxes
from visattn.viz.html.document import PageOptions, PageParts, photo_page
from visattn.viz.text import sanitize_text

_WORD, _TEXT = 60, 1_000  # characters


def answer_html(
    image: ImageLike,
    answers: Sequence[Answer],
    *,
    boxes: Sequence[MapBoxes | None] | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with answers and the attention map of each hop.

    Each hop has a tab. All hops of a question share one scale, from 0 to their common maximum, so
    that a diffuse map looks diffuse beside a sharp one. Words are shaded by their weight.

    Args:
        image: The original image.
        answers: Answers to questions about this image by one model.
        boxes: Boxes of the maps of each answer, which are outlined.
        options: Fields of `PageOptions`, such as `name`, `index` and `colormap`.

    Raises:
        ValueError: If there is no answer, the grids differ, or the maps belong to an image of
            another size.

    Example:
        >>> answer = Answer("<Red>?", ("red",), (("yes", 0.9), ("no", 0.1)), None)
        >>> page = answer_html(np.zeros((30, 40, 3), np.uint8), [answer])
        >>> "&lt;Red&gt;?" in page, "<Red>" in page
        (True, False)
    """
    original = read_image(image)
    if not answers:
        raise ValueError("a page needs at least one question")
    maps = [answer.maps for answer in answers if answer.maps is not None]
    grids = {tuple(each.values.shape[1:]) for each in maps}
    if len(grids) > 1:
        raise ValueError(f"the maps of all questions must have the same grid, got {sorted(grids)}")
    places = (each.geometry for each in maps)
    page = PageOptions(**options).otherwise(name=Path(original.name).name, smooth=True)
    questions = zip(answers, boxes or [None] * len(answers), strict=True)
    return photo_page(
        original.pixels,
        next(filter(None, places), Geometry.identity(original.size)),
        PageParts(
            "question.html",
            ["question.js"],
            data={
                "grid": list(grids.pop() if grids else (1, 1)),
                "questions": [_question_data(*each) for each in questions],
                "smooth": page.smooth,
            },
            texts={"question": sanitize_text(answers[0].question, _TEXT)},
            styles=["question.css"],
            model=next((each.info.model for each in maps), ""),
        ),
        page,
    )


def _question_data(answer: Answer, boxes: MapBoxes | None) -> dict[str, Any]:
    """Return the data for the script; maps as base64 of little-endian float32."""
    maps = np.zeros((0, 1, 1)) if answer.maps is None else answer.maps.values.numpy()
    weights = answer.word_weights
    return {
        "question": sanitize_text(answer.question, _TEXT),
        "words": [sanitize_text(word, _WORD) for word in answer.words],
        "unknown": [sanitize_text(word, _WORD) for word in answer.unknown],
        "answers": [[sanitize_text(text, _WORD), share] for text, share in answer.answers],
        "hops": [sanitize_text(hop, _WORD) for hop in (answer.maps.labels if answer.maps else ())],
        "maps": base64.b64encode(maps.astype("<f4").tobytes()).decode(),
        "scale": [0.0, float(maps.max(initial=0)) or 1.0],
        "weights": [] if weights is None else weights.tolist(),
        "notes": [sanitize_text(note, _TEXT) for note in answer.notes],
        "boxes": relative_boxes(boxes),
    }
