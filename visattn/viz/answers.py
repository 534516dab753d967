"""Figures of answers to questions: the photo, and the map of each hop."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import MapScale
from visattn.results.values import Answer, format_percent
from visattn.viz.figures import Figure, Tile, sheet
from visattn.viz.heatmap import DrawOptions
from visattn.viz.text import join_notes

_ANSWERS = 3  # number of answers in the text
_NO_MAPS = "this model has no attention maps"


def answer_figure(
    image: ImageLike,
    answers: Sequence[Answer],
    *,
    boxes: Sequence[MapBoxes | None] = (),
    note: str = "",
    crop: bool = False,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
    **options: Any,
) -> Figure:
    """Return a figure with a row for each question: the photo, and the map of each hop.

    The maps of a question share one scale, from 0 to their common maximum.

    Args:
        image: The original image.
        answers: At least one answer to a question about this image.
        boxes: Boxes to outline, from the maps of each answer.
        note: Text after the answers, such as the true one.
        crop: See `visattn.figure`.
        width: See `visattn.figure`.
        rc: See `visattn.figure`.
        options: Fields of `DrawOptions`.

    Example:
        >>> import numpy as np
        >>> maps = AttentionMap(torch.eye(2)[None], "hop", "tokens", Geometry.identity((30, 40)))
        >>> answer = Answer("Red?", ("red",), (("yes", 0.9), ("no", 0.1)), maps)
        >>> drawn = answer_figure(np.zeros((30, 40, 3), np.uint8), [answer])
        >>> drawn.axes[0].texts[0].get_text().splitlines()
        ['Red?', 'yes (90 %), no (10 %)']
    """
    photo, rows = read_image(image), []
    for answer, own in zip(answers, boxes or [None] * len(answers), strict=True):
        place = Geometry.identity(photo.size)
        none = AttentionMap(torch.zeros(1, 1), "maps", "tokens", place, MapInfo(empty=_NO_MAPS))
        maps = list(answer.maps) if answer.maps is not None and len(answer.maps) else [none]
        top = max(float(each.values.nan_to_num().max()) for each in maps) or 1.0
        said = join_notes(answers_line(answer.answers), note)
        scale, outlined = MapScale("global", 0.0, top), own.per_map() if own else [()] * len(maps)
        rows.append([
            Tile(photo.pixels, note=f"{answer.question}\n{said}"),
            *(
                Tile(photo.pixels, each, scale, each.info.label, boxes=around)
                for each, around in zip(maps, outlined, strict=True)
            ),
        ])  # fmt: skip
    seen = {each.map.geometry.seen_text for row in rows for each in row
            if each.map is not None and each.map.geometry is not None}  # fmt: skip
    return sheet(rows, DrawOptions(**options), notes=seen, crop=crop, width=width, rc=rc)


def answers_line(answers: Sequence[tuple[str, float]]) -> str:
    """Return the most probable answers with their probabilities.

    Args:
        answers: Answers and their probabilities, the best first.

    Example:
        >>> answers_line([("yes", 0.9), ("no", 0.1)])
        'yes (90 %), no (10 %)'
    """
    return ", ".join(f"{text} ({format_percent(share)})" for text, share in answers[:_ANSWERS])
