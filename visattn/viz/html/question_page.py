"""Interactive HTML page of questions about a photo: answers, and the map of each hop."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.html.photo_page import LONGEST, photo_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.heatmap import Style

_WORD, _TEXT = 60, 1_000  # characters


@dataclass(frozen=True, eq=False)
class PageQuestion:
    """A question with its answers as a page shows it.

    Args:
        question: The question.
        words: Its words, at least one.
        answers: Answers and their probabilities, the most probable first.
        hops: Names of the maps; empty if the model has none.
        maps: Attention on the grid that covers the model's input, one map per hop; None without.
        word_weights: Attention to the words for each hop; None if there is none.
        unknown: Words that the model does not know.
        notes: What limits the answer.
        boxes: Boxes around the high parts of each map, left, top, right and bottom as fractions of
            the image size; empty without boxes.

    Raises:
        ValueError: If there is no word or answer, the numbers of entries differ, or they are not
            finite.

    Example:
        >>> PageQuestion("Red?", ("red",), (("yes", 0.9),)).hops
        ()
    """

    question: str
    words: tuple[str, ...]
    answers: tuple[tuple[str, float], ...]
    hops: tuple[str, ...] = ()
    maps: Float[np.ndarray, "hops y x"] | None = None
    word_weights: Float[np.ndarray, "hops t"] | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    boxes: tuple[tuple[tuple[float, float, float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers of entries."""
        if not self.words or not self.answers:
            raise ValueError(
                "a question needs at least one word and one answer, got "
                f"{len(self.words)} words and {len(self.answers)} answers"
            )
        count = 0 if self.maps is None else len(self.maps)
        if count != len(self.hops):
            raise ValueError(f"there must be one name per map, got {len(self.hops)} and {count}")
        shape = (len(self.hops), len(self.words))
        if self.word_weights is not None and self.word_weights.shape != shape:
            raise ValueError(
                f"word_weights must be {shape}, hops x words, got {self.word_weights.shape}"
            )
        arrays = [part for part in (self.maps, self.word_weights) if part is not None]
        if not all(np.isfinite(part).all() for part in arrays):
            raise ValueError("maps and word_weights must be finite, got NaN or infinity")


def question_page(
    image: UInt8[np.ndarray, "y x 3"],
    questions: Sequence[PageQuestion],
    geometry: Mapping[str, Any],
    *,
    name: str = "image",
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    longest: int = LONGEST,
    index: str | None = None,
    smooth: bool = True,
) -> str:
    """Return a self-contained HTML page that shows where a model looked for its answers.

    Each hop has a tab. All hops of a question share one scale, from 0 to their common maximum, so
    that a diffuse map looks diffuse beside a sharp one. Words are shaded by their weight.

    Args:
        image: RGB, of any size and proportions.
        questions: Questions about the image, answered by one model.
        geometry: Geometry of the maps, from `Geometry.to_dict`.
        name: Name of the image.
        colormap: See `colormap_lut`.
        opacity: Initial opacity at the maximum, between 0 and 1.
        style: Initial style, `heat` or `light`.
        longest: Maximum side of the embedded image in pixels.
        index: File name of the index page to link to.
        smooth: Whether the maps are interpolated at first, or drawn as cells.

    Raises:
        ValueError: If there is no question, the grids differ, the geometry belongs to another
            image, or an option is invalid.

    Example:
        >>> red = PageQuestion("<Red>?", ("<red>",), (("yes", 0.9),))
        >>> place = {"matrix": np.eye(3).tolist(), "input_size": [30, 40],
        ...          "image_size": [30, 40], "region": [0, 0, 40, 30]}
        >>> page = question_page(np.zeros((30, 40, 3), np.uint8), [red], place)
        >>> "&lt;Red&gt;?" in page, "<Red>" in page
        (True, False)
    """
    if not questions:
        raise ValueError("a page needs at least one question")
    grids = {each.maps.shape[1:] for each in questions if each.maps is not None}
    if len(grids) > 1:
        raise ValueError(f"the maps of all questions must have the same grid, got {sorted(grids)}")
    return photo_page(
        "question.html",
        image,
        geometry,
        styles=["paper.css", "viewer.css", "question.css"],
        scripts=["overlays.js", "photo.js", "widgets.js", "question.js"],
        data={
            "grid": list(grids.pop() if grids else (1, 1)),
            "questions": [_question_data(each) for each in questions],
            "smooth": smooth,
        },
        texts={"question": sanitize_text(questions[0].question, _TEXT)},
        name=name,
        colormap=colormap,
        opacity=opacity,
        style=style,
        longest=longest,
        index=index,
    )


def _question_data(entry: PageQuestion) -> dict[str, Any]:
    """Return the data for the script; maps as base64 of little-endian float32."""
    maps = np.zeros((0, 1, 1)) if entry.maps is None else entry.maps
    weights = [] if entry.word_weights is None else entry.word_weights.astype(float).tolist()
    return {
        "question": sanitize_text(entry.question, _TEXT),
        "words": [sanitize_text(word, _WORD) for word in entry.words],
        "unknown": [sanitize_text(word, _WORD) for word in entry.unknown],
        "answers": [[sanitize_text(text, _WORD), share] for text, share in entry.answers],
        "hops": [sanitize_text(hop, _WORD) for hop in entry.hops],
        "maps": base64.b64encode(maps.astype("<f4").tobytes()).decode(),
        "scale": [0.0, float(maps.max(initial=0)) or 1.0],
        "weights": weights,
        "notes": [sanitize_text(note, _TEXT) for note in entry.notes],
        "boxes": entry.boxes,
    }
