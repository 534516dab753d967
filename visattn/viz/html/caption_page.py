"""Interactive HTML page of a caption: the attention map of each word."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from visattn.results.captions import GroundedPhrase
from visattn.viz.html.document import escape_text, image_data_url
from visattn.viz.html.photo_page import LONGEST, PageImage, photo_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.heatmap import Style

_WORD, _CAPTION = 60, 1_000  # characters
_VIEWER = (
    "overlays.js", "photo.js", "widgets.js", "viewer.js",
)  # fmt: skip


class PageFigure(NamedTuple):
    """A figure below the photo."""

    title: str
    pixels: UInt8[np.ndarray, "y x 3"]


@dataclass(frozen=True, eq=False)
class PageCaption:
    """A caption as a page shows it.

    Args:
        words: At least one.
        maps: Attention on the grid that covers the model's input, one map per word.
        log_probs: Log-probability of each word; empty if unknown.
        gates: Gate of each word, between 0 and 1; empty if the model has none.
        score: Beam-search score.
        finished: Whether the caption has an end token; otherwise it was truncated.
        phrases: Phrases with ground-truth boxes.
        boxes: Boxes around the high parts of each map, left, top, right and bottom as fractions of
            the image size; empty without boxes.
        texts: For each word the words of the text that it attends to, with their weights; empty if
            unknown.

    Raises:
        ValueError: If there is no word, or the numbers of entries differ.

    Example:
        >>> PageCaption(("a", "dog"), np.zeros((2, 7, 7))).score is None
        True
    """

    words: tuple[str, ...]
    maps: Float[np.ndarray, "t y x"]
    log_probs: tuple[float, ...] = ()
    gates: tuple[float, ...] = ()
    score: float | None = None
    finished: bool = True
    phrases: tuple[GroundedPhrase, ...] = ()
    boxes: tuple[tuple[tuple[float, float, float, float], ...], ...] = ()
    texts: tuple[tuple[tuple[str, float], ...], ...] = ()

    def __post_init__(self) -> None:
        """Check that there is one entry per word."""
        count = len(self.words)
        if not count:
            raise ValueError("a caption needs at least one word, got none")
        for name in ("maps", "log_probs", "gates", "boxes", "texts"):
            length = len(getattr(self, name))
            if length != count and (length or name == "maps"):
                raise ValueError(f"{name} must have {count} entries, one per word, got {length}")


def caption_page(
    image: UInt8[np.ndarray, "y x 3"],
    captions: Sequence[PageCaption],
    geometry: Mapping[str, Any],
    *,
    name: str = "image",
    vmax: float | None = None,
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    longest: int = LONGEST,
    index: str | None = None,
    smooth: bool = True,
    gate_symbol: str = "β",
    notes: str = "",
    images: Sequence[PageImage] = (),
    quantity: str = "attention",
    even: tuple[float, str] | None = None,
    figures: Sequence[PageFigure] = (),
) -> str:
    """Return a self-contained HTML page that shows the attention map of each word.

    Hovering, tapping or selecting a word with the arrow keys shows its map on the image, as
    `overlay` draws it. All words of all captions share one value range.

    Args:
        image: RGB, of any size and proportions.
        captions: The best caption first, then the other candidates.
        geometry: Geometry of the maps, from `Geometry.to_dict`.
        name: Name of the image.
        vmax: Value at the upper end of the colormap. By default the median of the peaks of the
            maps of the first caption.
        colormap: See `colormap_lut`.
        opacity: Initial opacity at `vmax`, between 0 and 1.
        style: Initial style, `heat` or `light`.
        longest: Maximum side of the embedded image in pixels.
        index: File name of the index page to link to.
        smooth: Whether the maps are interpolated at first, or drawn as cells.
        gate_symbol: Symbol of the gates, or words that name them.
        notes: How the maps were made.
        images: Several images that are shown side by side, `image` first. The maps of a word
            have the cells of all of them, `[t, 1, cells]`, one image after the other.
        quantity: What the values of the maps are.
        even: Value that the scale marks, and what it means, such as that of a uniform map.
        figures: Figures below the photo.

    Raises:
        ValueError: If there is no caption, the grids differ, the geometry belongs to another
            image, or an option is invalid.

    Example:
        >>> dog = PageCaption(("a", "<dog>"), np.full((2, 3, 3), 1 / 9))
        >>> place = {"matrix": np.eye(3).tolist(), "input_size": [30, 40],
        ...          "image_size": [30, 40], "region": [0, 0, 40, 30]}
        >>> page = caption_page(np.zeros((30, 40, 3), np.uint8), [dog], place)
        >>> "a &lt;dog&gt;" in page, "<dog>" in page
        (True, False)
    """
    _check_captions(captions)
    first = captions[0]
    cells = sum(each.grid[0] * each.grid[1] for each in images)
    if images and first.maps.shape[1:] != (1, cells):
        raise ValueError(
            f"the maps of {len(images)} images must have {cells} cells, got maps of shape "
            f"{first.maps.shape}"
        )
    peaks = [float(values.max()) for values in first.maps]
    vmax = _default_vmax(peaks) if vmax is None else vmax
    if not vmax > 0:
        raise ValueError(f"vmax must be above 0, got {vmax}")
    return photo_page(
        "viewer.html",
        image,
        geometry,
        styles=["paper.css", "viewer.css"],
        scripts=_VIEWER,
        data={
            "grid": list(first.maps.shape[1:]),
            "scale": [0.0, vmax],
            "clipped": max(float(entry.maps.max()) for entry in captions) > vmax,
            "captions": [_caption_data(entry) for entry in captions],
            "smooth": smooth,
            "gateSymbol": gate_symbol,
            "notes": sanitize_text(notes, _CAPTION),
            "quantity": quantity,
            "even": None if even is None else list(even),
        },
        images=images,
        markup={"statistics": "".join(map(_figure, figures))},
        texts={"caption": sanitize_text(" ".join(first.words), _CAPTION)},
        name=name,
        colormap=colormap,
        opacity=opacity,
        style=style,
        longest=longest,
        index=index,
    )


def _figure(figure: PageFigure) -> str:
    """Return the markup of a figure."""
    longest = max(figure.pixels.shape[:2])
    address, (height, width) = image_data_url(figure.pixels, longest=longest)
    title = escape_text(figure.title)
    return (
        f'<section class="card wide"><h3>{title}</h3><div class="scroll">'
        f'<img src="{address}" width="{width}" height="{height}" alt="{title}"></div></section>'
    )


def _check_captions(captions: Sequence[PageCaption]) -> None:
    if not captions:
        raise ValueError("a page needs at least one caption")
    grids = {caption.maps.shape[1:] for caption in captions}
    if len(grids) > 1:
        raise ValueError(f"the maps of all captions must have the same grid, got {sorted(grids)}")


def _default_vmax(peaks: list[float]) -> float:
    median = sorted(peaks)[len(peaks) // 2]
    return median if median > 0 else 1.0


def _caption_data(caption: PageCaption) -> dict[str, Any]:
    """Return the data for the script; maps as base64 of little-endian float32."""
    maps = caption.maps.astype("<f4").tobytes()
    return {
        "words": [sanitize_text(word, _WORD) for word in caption.words],
        "chances": [math.exp(min(0.0, log_prob)) for log_prob in caption.log_probs],
        "gates": list(caption.gates),
        "score": caption.score,
        "finished": caption.finished,
        "maps": base64.b64encode(maps).decode(),
        "phrases": [phrase._asdict() for phrase in caption.phrases],
        "boxes": caption.boxes,
        "texts": [
            [[sanitize_text(text, _WORD), weight] for text, weight in row] for row in caption.texts
        ],
    }
