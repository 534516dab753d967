"""HTML pages and animations of captions."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.pipelines.captioning import ground_phrases
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, Phrase
from visattn.viz.captions import caption_figure
from visattn.viz.html.caption_page import caption_html

WORDS = ("a", "red", "dog")
SIZE = (40, 100)
PIXELS = np.full((*SIZE, 3), 120, np.uint8)
MIDDLE = ResizeSpec((24, 24)).geometry(SIZE)  # 30 to 70 of 100 columns
DOG = Phrase(4, 2, ((0.3, 0.0, 0.5, 1.0),), ("animals",), "red dog")
HIDDEN = Phrase(0, 1, ((0.0, 0.0, 0.2, 1.0),), ("other",), "a")


def make_caption(words: tuple[str, ...] = WORDS, geometry: Geometry | None = MIDDLE) -> Caption:
    """Return a caption whose maps peak further to the right with each word."""
    values = torch.zeros(len(words), 2, 4)
    values[range(len(words)), 0, range(len(words))] = 1.0
    maps = AttentionMap(values, "look", "words", geometry, labels=words)
    count = len(words)
    return Caption(words, (-0.5,) * count, (0.5,) * count, maps, -1.5, finished=True)


def page_data(text: str) -> dict[str, Any]:
    match = re.search(r'id="page-data">(.*?)</script>', text)
    assert match is not None
    return json.loads(match[1])


def test_page_contains_all_captions_with_one_scale() -> None:
    caption = replace(make_caption(), alternatives=(make_caption(("cat",)),))
    data = page_data(caption_html(PIXELS, caption))
    assert [each["words"] for each in data["captions"]] == [["a", "red", "dog"], ["cat"]]
    assert data["scale"] == [0.0, caption.maps.display_range()[1]]
    assert data["geometry"]["region"] == [30.0, 0.0, 70.0, 40.0]


def test_gates_are_drawn_for_captioners_with_a_gate_only() -> None:
    gated = make_caption()
    plain = replace(gated, gates=(1.0, 1.0, 1.0))
    pages = [page_data(caption_html(PIXELS, each)) for each in (gated, plain)]
    assert [page["captions"][0]["gates"] for page in pages] == [[0.5] * 3, []]
    heights = [caption_figure(PIXELS, each).get_figheight() for each in (gated, plain)]
    assert heights[0] > heights[1]  # no rows of bars


def test_page_shows_the_file_name_without_folders(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "my dog.png")
    text = caption_html(tmp_path / "my dog.png", make_caption())
    assert "<title>my dog.png: a red dog</title>" in text
    assert tmp_path.name not in text
    assert "<title>Rex: a red dog</title>" in caption_html(PIXELS, make_caption(), name="Rex")


def test_reference_phrases_are_scored_on_the_visible_part_of_their_boxes() -> None:
    # The box covers the left half of the visible region: the first two columns of the grid.
    grounded = ground_phrases(make_caption(), [DOG, HIDDEN])
    (hidden, dog) = grounded.phrases
    assert (dog.first, dog.words, dog.boxes) == (1, 2, DOG.boxes)
    assert dog.correctness == pytest.approx((1.0, 0.0))
    assert dog.baseline == pytest.approx(0.5)
    assert (hidden.first, hidden.boxes, hidden.correctness) == (0, HIDDEN.boxes, ())
    (caption,) = page_data(caption_html(PIXELS, grounded))["captions"]
    assert [each["first"] for each in caption["phrases"]] == [0, 1]
    assert ground_phrases(make_caption(("dogs",)), [DOG]).phrases == ()


def test_captions_without_geometry_are_refused() -> None:
    with pytest.raises(ValueError, match="have no geometry"):
        caption_html(PIXELS, make_caption(geometry=None))
    with pytest.raises(ValueError, match=r"belong to an image of size \(40, 100\)"):
        caption_html(np.zeros((7, 5, 3), np.uint8), make_caption())
