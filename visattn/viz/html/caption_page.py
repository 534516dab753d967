"""Interactive HTML page of a caption: the attention map of each word."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from visattn.geometry.affine import Box, Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.map_boxes import MapBoxes
from visattn.results.values import format_percent
from visattn.viz.html.document import (
    PageOptions,
    fact,
    map_row,
    map_view,
    own_geometry,
    photo_page,
)

_MINUS = "\N{MINUS SIGN}"
_FUNCTION = {
    "a", "an", "and", "are", "at", "by", "for", "from", "has", "in", "is", "it", "of", "on", "or",
    "the", "to", "with",
}  # fmt: skip


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
            of its `phrases` are shown. Or a dictionary of captions by model name: each gets a row
            of words.
        boxes: Boxes to outline, from `caption.maps.boxes()` of the first caption.
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
    best, several = next(iter(models.values())), len(models) > 1
    geometry = best.maps.geometry
    if geometry is None:
        raise ValueError(
            "the maps of the caption have no geometry; `visattn.caption` returns placed maps"
        )
    photo = read_image(image)
    page = PageOptions(**options).otherwise(name=Path(photo.name).name, smooth=best.smooth)
    rows: list[dict[str, Any]] = []
    for name, each in models.items():
        # All candidates of a single model; the best of each of several models.
        shown = [one.drawable() for one in (each, *(() if several else each.alternatives))]
        rows += _caption_rows(shown, page.vmax, geometry, name * several, several)
    for view, outlines in zip(rows[0]["views"], relative_boxes(boxes), strict=False):
        view["outlines"] = outlines
    return photo_page(
        photo.pixels, geometry, rows, page, kind="words",
        model="" if several else next(iter(models)) or best.maps.info.model,
        others="Candidate captions", together=several, gate=_gate_meaning(best),
        first=_first_word(best.drawable()),
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


def _caption_rows(
    captions: Sequence[Caption], vmax: float | None, base: Geometry, name: str, several: bool
) -> list[dict[str, Any]]:
    """Return the words of the captions of a model, which share a scale."""
    best = captions[0]
    top = best.maps.display_range()[1] if vmax is None else vmax
    if not top > 0:
        raise ValueError(f"vmax must be above 0, got {top}")
    attention, known = best.quantity == "attention", set(best.words)
    common = {
        "scale": (0.0, top),
        "range": (0.0, max(float(each.maps.values.max()) for each in captions)),
        "unit": "attention per cell" if attention else best.quantity,
        "even": 1 / best.maps.values.shape[1:].numel() if attention else None,
        "cells": several and not best.smooth,
        **own_geometry(best.maps.geometry, base),
    }
    rows = []
    for caption in captions:
        maps, count = caption.maps.values.numpy(), len(caption.words)
        views = [map_view(maps[at], **_word(caption, at), **common) for at in range(count)]
        mean = map_view(
            maps.mean(0),
            "All words",
            title="Mean of all maps",
            which=f"All {count} words",
            **common,
        )
        line = [(text, text.strip() not in known) for text in _spaced_words(caption)]
        rows.append(map_row(
            views, caption.text, name=name, mean=mean, notes=[best.notes] if best.notes else [],
            line=line if caption.finished else [*line, (" \N{HORIZONTAL ELLIPSIS}", False)],
            score="" if caption.score is None else f"{_MINUS}{abs(caption.score):.2f}",
        ))  # fmt: skip
    return rows


def _word(caption: Caption, at: int) -> dict[str, Any]:
    """Return the facts about a word."""
    facts = []
    if caption.log_probs:
        chance = math.exp(min(0.0, caption.log_probs[at]))
        facts.append(fact("Probability", format_percent(chance), chance, kind="chance"))
    if caption.has_gates:
        gate = caption.gates[at]
        facts.append(fact(_gate_label(caption).capitalize(), f"{gate:.2f}", gate, kind="gate"))
    phrase = next((p for p in caption.phrases if p.first <= at < p.first + p.words), None)
    about = None
    if phrase is not None:
        words = "".join(_spaced_words(caption)[phrase.first : phrase.first + phrase.words])
        about = {"title": words.strip(), "facts": _phrase_facts(phrase, at - phrase.first)}
    elif caption.phrases:
        about = {"title": "No boxes are known for this word", "facts": ()}
    return {
        "label": caption.words[at],
        "which": f"Word {at + 1} of {len(caption.words)}",
        "facts": facts,
        "about": about,
        "boxes": phrase.boxes if phrase else (),
    }


def _spaced_words(caption: Caption) -> list[str]:
    """Return the words, each with the space before it, which some scripts do not have."""
    spaces = caption.spaces or (True,) * len(caption.words)
    return [" " * (at > 0 and spaces[at]) + word for at, word in enumerate(caption.words)]


def _phrase_facts(phrase: GroundedPhrase, at: int) -> list[dict[str, Any]]:
    """Return how much of the map of a word is inside the boxes of its phrase."""
    if at >= len(phrase.correctness):
        return [fact("Inside the boxes", "outside the model's input")]
    inside = phrase.correctness[at]
    return [
        fact("Inside the boxes", f"{inside:.2f}", inside, mark=phrase.baseline),
        fact("Uniform attention", f"{phrase.baseline:.2f}"),
        fact("Difference", f"{inside - phrase.baseline:+.2f}".replace("-", _MINUS)),
        fact("Peak of the phrase", "inside \u2713" if phrase.pointed else "outside \u2717"),
    ]


def _gate_label(caption: Caption) -> str:
    """Return the name of the gates: a symbol such as β, or words such as "on the photo"."""
    symbol = caption.gate_symbol
    return symbol if len(symbol) > 3 else f"gate {symbol}"


def _gate_meaning(caption: Caption) -> str:
    label = _gate_label(caption)
    if caption.gate_symbol.startswith("on "):
        return f"{label}: share of the word's attention on the photo"
    return (
        f"{label}: weight of the image for the word, 0 to 1; a word with a low gate depends mostly "
        "on the words before it"
    )


def _first_word(caption: Caption) -> int:
    """Return the index of the first word to show: one with boxes, else that of the highest peak."""
    if caption.phrases:
        return caption.phrases[0].first + caption.phrases[0].words - 1  # usually the noun
    peaks = caption.maps.values.flatten(1).amax(1).tolist()
    # Articles and other function words attend to the objects of neighboring words.
    named = [at for at, word in enumerate(caption.words) if word.strip().lower() not in _FUNCTION]
    return max(named or range(len(peaks)), key=peaks.__getitem__, default=0)
