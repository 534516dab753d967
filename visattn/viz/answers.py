"""Figures of answers to questions: the photo, and the map of each hop."""

from collections.abc import Sequence
from typing import Any

import torch

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import MapScale
from visattn.results.values import Answer, format_percent
from visattn.viz.figures import figure
from visattn.viz.rendering import Figure, stack_figures
from visattn.viz.text import join_notes

_ANSWERS = 3  # that the subtitle names
_NO_MAPS = "this model has no attention maps"


def answer_figure(
    image: ImageLike,
    answers: Sequence[Answer],
    *,
    boxes: Sequence[MapBoxes | None] = (),
    note: str = "",
    **options: Any,
) -> Figure:
    """Return a figure of questions below each other: the photo, and the map of each hop.

    Args:
        image: The original image.
        answers: At least one answer to a question about this image.
        boxes: Boxes of the maps of each answer, which are outlined.
        note: What follows the answers, such as the name of the photo.
        options: Fields of `DrawOptions`, such as `width` and `scale`.

    Raises:
        ValueError: If there is no answer, the maps belong to an image of another size, or the
            figure is too narrow.

    Example:
        >>> import numpy as np
        >>> maps = AttentionMap(torch.eye(2)[None], "hop", "tokens", Geometry.identity((30, 40)))
        >>> answer = Answer("Red?", ("red",), (("yes", 0.9), ("no", 0.1)), maps)
        >>> answer_figure(np.zeros((30, 40, 3), np.uint8), [answer], width=600).image.width
        600
    """
    if not answers:
        raise ValueError("a figure needs at least one question")
    photo = read_image(image)
    return stack_figures(
        [
            hop_figure(
                photo,
                [] if answer.maps is None else list(answer.maps),
                answer.question,
                answers_line(answer.answers, note),
                **({} if own is None else {"boxes": own.per_map()}),
                **options,
            )
            for answer, own in zip(answers, boxes or [None] * len(answers), strict=True)
        ]
    )


def hop_figure(
    image: ImageLike, maps: Sequence[AttentionMap], question: str, subtitle: str, **options: Any
) -> Figure:
    """Return a figure of the maps of a question, on one scale from 0 to their common maximum.

    Args:
        image: The original image.
        maps: The map of each hop; a figure without says so.
        question: Title of the figure.
        subtitle: Its second line.
        options: Fields of `DrawOptions`, and `boxes` of the maps.

    Example:
        >>> import numpy as np
        >>> hop_figure(np.zeros((30, 40, 3), np.uint8), [], "Red?", "yes 90 %").image.width
        1200
    """
    photo = read_image(image)
    if not maps:
        place = Geometry.identity(photo.size)
        maps = [AttentionMap(torch.zeros(1, 1), "maps", "tokens", place, MapInfo(empty=_NO_MAPS))]
    top = max(float(each.values.nan_to_num().max()) for each in maps) or 1.0
    scales = [MapScale("global", 0.0, top)] * len(maps)
    return figure(maps, photo, scales=scales, title=question, subtitle=subtitle, **options)


def answers_line(answers: Sequence[tuple[str, float]], note: str = "") -> str:
    """Return the most probable answers with their probabilities, and a note.

    Args:
        answers: Answers and their probabilities, the best first.
        note: What follows them.

    Example:
        >>> answers_line([("yes", 0.9), ("no", 0.1)], "correct: yes")
        'yes (90 %), no (10 %) · correct: yes'
    """
    shown = [f"{text} ({format_percent(share)})" for text, share in answers[:_ANSWERS]]
    return join_notes(", ".join(shown), note)
