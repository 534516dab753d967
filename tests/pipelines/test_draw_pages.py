"""From what a model said to pages and moving images."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.data.images.resize import ResizeSpec, framed_geometry
from visattn.data.phrases.phrases import Phrase
from visattn.geometry.affine import Geometry
from visattn.pipelines.captioning import Caption
from visattn.pipelines.draw_pages import animation, judged_phrases, page
from visattn.recording.attention_map import AttentionMap

WORDS = ("a", "red", "dog")
SIZE = (40, 100)
PIXELS = np.full((*SIZE, 3), 120, np.uint8)
MIDDLE = framed_geometry(SIZE, ResizeSpec((24, 24)))  # 30 to 70 of 100 columns
DOG = Phrase(4, 2, ((0.3, 0.0, 0.5, 1.0),), ("animals",), "red dog")
HIDDEN = Phrase(0, 1, ((0.0, 0.0, 0.2, 1.0),), ("other",), "a")


def said(words: tuple[str, ...] = WORDS, geometry: Geometry | None = MIDDLE) -> Caption:
    """Return a caption whose maps lie, word by word, further to the right."""
    values = torch.zeros(len(words), 2, 4)
    values[range(len(words)), 0, range(len(words))] = 1.0
    maps = AttentionMap(values, "look", "words", geometry, {}, words)
    ones = (0.5,) * len(words)
    return Caption(words, tuple(-one for one in ones), ones, maps, -1.5, finished=True)


def told(text: str) -> dict[str, Any]:
    found = re.search(r'id="told">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1])


def test_a_page_tells_all_captions_with_one_scale() -> None:
    caption = replace(said(), alternatives=(said(("cat",)),))
    data = told(page(PIXELS, caption))
    assert [one["words"] for one in data["captions"]] == [["a", "red", "dog"], ["cat"]]
    assert data["scale"] == [0.0, caption.maps.scale()[1]]
    assert data["geometry"]["region"] == [30.0, 0.0, 70.0, 40.0]


def test_a_page_names_the_photo_without_its_folders(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "my dog.png")
    text = page(tmp_path / "my dog.png", said())
    assert "<title>my dog.png: a red dog</title>" in text
    assert tmp_path.name not in text
    assert "<title>Rex: a red dog</title>" in page(PIXELS, said(), name="Rex")


def test_phrases_that_are_said_again_are_judged_on_what_was_seen() -> None:
    # The box is the left half of what the network saw: of the grid, the first two columns.
    (hidden, dog) = judged_phrases(said(), [DOG, HIDDEN])
    assert (dog.first, dog.words, dog.boxes) == (1, 2, DOG.boxes)
    assert dog.correctness == pytest.approx((1.0, 0.0))
    assert dog.baseline == pytest.approx(0.5)
    assert (hidden.first, hidden.boxes, hidden.correctness) == (0, HIDDEN.boxes, ())
    (caption,) = told(page(PIXELS, said(), regions=[DOG, HIDDEN]))["captions"]
    assert [one["first"] for one in caption["phrases"]] == [0, 1]
    assert judged_phrases(said(("dogs",)), [DOG]) == ()


def test_an_animation_has_a_frame_for_each_word() -> None:
    with Image.open(io.BytesIO(animation(PIXELS, said(), width=160))) as moving:
        assert getattr(moving, "n_frames", 1) == 5
        moving.seek(2)
        frame = np.array(moving.convert("RGB"))
    bright = frame[:64].astype(int).sum(2)
    top, bottom = bright[:32], bright[32:]
    # The second of four columns between 30 and 70 of 100, at 1.6 pixels each.
    assert abs(top.sum(0)[48:112].argmax() + 48 - 1.6 * 45) < 6
    assert top.max() > bottom.max()


def test_maps_without_a_place_are_refused() -> None:
    with pytest.raises(ValueError, match="do not know their image"):
        page(PIXELS, said(geometry=None))
    with pytest.raises(ValueError, match=r"lie on an image of \(40, 100\)"):
        page(np.zeros((7, 5, 3), np.uint8), said())
