"""Data in HTML pages of questions."""

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.values import Answer
from visattn.viz.html.question_page import answer_html

MAPS = np.random.default_rng(1).random((2, 3, 5))
WEIGHTS = np.array([[0.75, 0.25], [0.5, 0.5]])
HOPS = ("hop 1", "<hop 2>")
PLACE = Geometry.identity((31, 53))
HOP_MAPS = AttentionMap(torch.from_numpy(MAPS), "hops", "tokens", PLACE, labels=HOPS)
SHARES = (("yes", 0.75), ("<no>", 0.25))
RED = Answer("Red <ring>?", ("red", "<ring>"), SHARES, HOP_MAPS, torch.from_numpy(WEIGHTS))


def page(*answers: Answer) -> str:
    return answer_html(np.zeros((31, 53, 3), np.uint8), answers)


def page_data(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    assert match is not None
    return json.loads(match[1])


def test_page_data_has_exact_maps_on_one_scale() -> None:
    data = page_data(page(RED, Answer("Left?", ("left",), (("no", 1.0),), None)))
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
    with pytest.raises(ValueError, match="at least one question"):
        page()
    coarse = replace(HOP_MAPS, values=HOP_MAPS.values[:, :2])
    with pytest.raises(ValueError, match="the same grid"):
        page(RED, replace(RED, maps=coarse))
