"""A caption in a page that can be touched: choose a word, and see where the model looked."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.html.photo_page import LONGEST, photo_page
from visattn.viz.html.safe_text import shown_text
from visattn.viz.maps.heatmap import Style

_WORD, _CAPTION = 60, 1_000  # characters
_VIEWER = (
    "overlays.js", "photo.js", "choices.js", "facts.js", "ramps.js", "words.js", "readouts.js",
    "viewer.js",
)  # fmt: skip


class ShownPhrase(NamedTuple):
    """Words of a caption whose thing is known to lie in boxes, and how well they found it."""

    first: int
    """Place of its first word in the caption, from 0."""
    words: int
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, right, bottom as shares of the image."""
    correctness: tuple[float, ...] = ()
    """Of each of its words, the share of attention inside the boxes; empty if the network saw
    nothing of them."""
    baseline: float = 0.0
    """What attention that is spread evenly would have inside the boxes."""
    pointed: bool = False
    """Whether the maps of its words, added up, are strongest inside the boxes."""


@dataclass(frozen=True, eq=False)
class ShownCaption:
    """What a page tells of one caption.

    Args:
        words: At least one.
        maps: Attention on the grid that covers the network's input, one for each word.
        log_probabilities: Of each word, in nats; empty if they are not known.
        gates: How much of what was seen went into each word, 0 to 1; empty if there are none.
        score: Of the caption, by which candidates are ordered.
        finished: Whether the model came to an end; otherwise the caption was cut.
        phrases: Those whose boxes are known.

    Raises:
        ValueError: If there is no word, or something has not one entry for each word.

    Example:
        >>> ShownCaption(("a", "dog"), np.zeros((2, 7, 7))).score is None
        True
    """

    words: tuple[str, ...]
    maps: Float[np.ndarray, "t y x"]
    log_probabilities: tuple[float, ...] = ()
    gates: tuple[float, ...] = ()
    score: float | None = None
    finished: bool = True
    phrases: tuple[ShownPhrase, ...] = ()

    def __post_init__(self) -> None:
        """Check that there is one of each for each word."""
        count = len(self.words)
        if not count:
            raise ValueError("a caption that is shown needs at least one word")
        for name in ("maps", "log_probabilities", "gates"):
            found = len(getattr(self, name))
            if found != count and (found or name == "maps"):
                raise ValueError(f"{name} must be one for each of {count} words, got {found}")


def caption_page(
    image: UInt8[np.ndarray, "y x 3"],
    captions: Sequence[ShownCaption],
    geometry: Mapping[str, Any],
    *,
    name: str = "image",
    high: float | None = None,
    colors: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    longest: int = LONGEST,
    index: str | None = None,
) -> str:
    """Return a page of HTML, whole in itself, that shows where the model looked for each word.

    A word that is pointed at, tapped or reached with the arrow keys shows its map on the photo, as
    `visattn.viz.maps.heatmap.overlay` draws it; all words of all captions share one scale.

    Args:
        image: RGB, of any size and proportions.
        captions: The best first, then the other candidates.
        geometry: How the maps lie on the image, as `Geometry.to_dict` writes it.
        name: Of the photo; stands on the page.
        high: The value that shows in full. By default the peak of the middle word of the first
            caption, when its words are ordered by their peaks.
        colors: The table of `heat`, see `visattn.viz.maps.colormap.color_table`.
        opacity: How far attention in full covers the image at first, between 0 and 1.
        style: `heat` or `light`, at first.
        longest: Of the photo in the page, in pixels.
        index: Name of a page to go back to.

    Raises:
        ValueError: If there is no caption, the grids differ, the geometry is of another image, or
            there is no such scale, opacity, style or color table.

    Example:
        >>> dog = ShownCaption(("a", "<dog>"), np.full((2, 3, 3), 1 / 9))
        >>> place = {"matrix": np.eye(3).tolist(), "input_size": [30, 40],
        ...          "image_size": [30, 40], "region": [0, 0, 40, 30]}
        >>> page = caption_page(np.zeros((30, 40, 3), np.uint8), [dog], place)
        >>> "a &lt;dog&gt;" in page, "<dog>" in page
        (True, False)
    """
    _check(captions)
    first = captions[0]
    peaks = [float(one.max()) for one in first.maps]
    high = _middle(peaks) if high is None else high
    if not high > 0:
        raise ValueError(f"high, the value that shows in full, must be above 0, got {high}")
    return photo_page(
        "viewer.html",
        image,
        geometry,
        styles=["paper.css", "viewer.css"],
        scripts=_VIEWER,
        data={
            "grid": list(first.maps.shape[1:]),
            "scale": [0.0, high],
            "clipped": max(float(one.maps.max()) for one in captions) > high,
            "captions": [_caption_data(one) for one in captions],
        },
        texts={"caption": shown_text(" ".join(first.words), _CAPTION)},
        name=name,
        colors=colors,
        opacity=opacity,
        style=style,
        longest=longest,
        index=index,
    )


def _check(captions: Sequence[ShownCaption]) -> None:
    if not captions:
        raise ValueError("a page needs at least one caption")
    grids = {one.maps.shape[1:] for one in captions}
    if len(grids) > 1:
        raise ValueError(f"the maps of all captions must have one grid, got {sorted(grids)}")


def _middle(peaks: list[float]) -> float:
    middle = sorted(peaks)[len(peaks) // 2]
    return middle if middle > 0 else 1.0


def _caption_data(caption: ShownCaption) -> dict[str, Any]:
    """Return what the script reads; of maps the bytes, as little-endian numbers of 32 bits."""
    maps = caption.maps.astype("<f4").tobytes()
    return {
        "words": [shown_text(word, _WORD) for word in caption.words],
        "chances": [math.exp(min(0.0, one)) for one in caption.log_probabilities],
        "gates": list(caption.gates),
        "score": caption.score,
        "finished": caption.finished,
        "maps": base64.b64encode(maps).decode(),
        "phrases": [phrase._asdict() for phrase in caption.phrases],
    }
