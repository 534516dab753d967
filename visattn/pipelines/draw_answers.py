"""HTML pages of answers to questions about a photo."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.pipelines.draw_pages import relative_boxes
from visattn.results.map_boxes import MapBoxes
from visattn.results.values import Answer
from visattn.viz.html.question_page import PageQuestion, question_page


def answer_html(
    image: ImageLike,
    answers: Sequence[Answer],
    *,
    boxes: Sequence[MapBoxes | None] | None = None,
    name: str | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page with answers and the attention map of each hop.

    Args:
        image: The original image.
        answers: Answers to questions about this image by one model.
        boxes: Boxes of the maps of each answer, which are outlined.
        name: Name on the page; by default the file name of the image.
        options: Arguments of `visattn.viz.html.question_page.question_page`.

    Raises:
        ValueError: If there is no answer, or the maps belong to an image of another size.

    Example:
        >>> answer = Answer("Red?", ("red",), (("yes", 0.9), ("no", 0.1)), None)
        >>> answer_html(np.zeros((30, 40, 3), np.uint8), [answer])[:15]
        '<!doctype html>'
    """
    original = read_image(image)
    geometries = [answer.maps.geometry for answer in answers if answer.maps is not None]
    geometry = next(filter(None, geometries), Geometry.identity(original.size))
    return question_page(
        original.pixels,
        [
            _page_question(*each)
            for each in zip(answers, boxes or [None] * len(answers), strict=True)
        ],
        geometry.to_dict(),
        name=Path(original.name).name if name is None else name,
        **options,
    )


def _page_question(answer: Answer, boxes: MapBoxes | None) -> PageQuestion:
    maps, weights = answer.maps, answer.word_weights
    return PageQuestion(
        answer.question,
        answer.words,
        answer.answers,
        () if maps is None else maps.labels,
        None if maps is None else maps.values.numpy(),
        None if weights is None else weights.numpy(),
        answer.unknown,
        answer.notes,
        relative_boxes(boxes),
    )
