"""Data in HTML pages of questions."""

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

from visattn.geometry.affine import Geometry
from visattn.viz.html.question_page import PageQuestion, question_page

MAPS = np.random.default_rng(1).random((2, 3, 5))
WEIGHTS = np.array([[0.75, 0.25], [0.5, 0.5]])
HOPS = ("hop 1", "<hop 2>")
RED = PageQuestion(
    "Red <ring>?", ("red", "<ring>"), (("yes", 0.75), ("<no>", 0.25)), HOPS, MAPS, WEIGHTS
)


def page(*questions: PageQuestion) -> str:
    geometry = Geometry.identity((31, 53)).to_dict()
    return question_page(np.zeros((31, 53, 3), np.uint8), questions, geometry)


def page_data(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    assert match is not None
    return json.loads(match[1])


def test_page_data_has_exact_maps_on_one_scale() -> None:
    data = page_data(page(RED, PageQuestion("Left?", ("left",), (("no", 1.0),))))
    first, second = data["questions"]
    packed = np.frombuffer(base64.b64decode(first["maps"]), "<f4").reshape(2, 3, 5)
    np.testing.assert_array_equal(packed, MAPS.astype(np.float32))
    assert first["scale"] == [0.0, pytest.approx(MAPS.max())]
    assert first["weights"] == WEIGHTS.tolist()
    assert data["grid"] == [3, 5]
    assert (second["hops"], second["weights"], second["maps"]) == ([], [], "")


def test_texts_cannot_become_markup() -> None:
    text = page(RED)
    for markup in ("<ring>", "<no>", "<hop 2>"):
        assert markup not in text


def test_bad_data_are_refused() -> None:
    answers = (("yes", 1.0),)
    with pytest.raises(ValueError, match="at least one word and one answer"):
        PageQuestion("?", (), answers)
    with pytest.raises(ValueError, match="one name per map, got 1 and 2"):
        PageQuestion("red", ("red",), answers, ("hop 1",), MAPS)
    with pytest.raises(ValueError, match=r"word_weights must be \(2, 1\)"):
        PageQuestion("red", ("red",), answers, HOPS, MAPS, WEIGHTS)
    with pytest.raises(ValueError, match="must be finite"):
        PageQuestion("red", ("red",), answers, HOPS, MAPS * np.nan)
    with pytest.raises(ValueError, match="at least one question"):
        page()
    with pytest.raises(ValueError, match="the same grid"):
        page(RED, PageQuestion("red", ("red",), answers, HOPS, MAPS[:, :2]))
