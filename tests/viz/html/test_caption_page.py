"""Data in HTML pages of captions."""

import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.results.captions import GroundedPhrase
from visattn.viz.html.caption_page import PageCaption, caption_page
from visattn.viz.maps.colormap import colormap_lut

WORDS = ("a", "dog")
MAPS = np.random.default_rng(1).random((2, 3, 5))
DOG = PageCaption(WORDS, MAPS, (-0.5, 0.0), (0.25, 1.0), -0.5)


def page(*captions: PageCaption, size: tuple[int, int] = (31, 53), **options: Any) -> str:
    geometry = Geometry.identity(size).to_dict()
    return caption_page(np.zeros((*size, 3), np.uint8), captions or (DOG,), geometry, **options)


def page_data(text: str) -> dict[str, Any]:
    actual = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    assert actual is not None
    return json.loads(actual[1])


def test_page_data_has_exact_maps() -> None:
    (caption,) = page_data(page())["captions"]
    actual = np.frombuffer(base64.b64decode(caption["maps"]), "<f4").reshape(2, 3, 5)
    np.testing.assert_array_equal(actual, MAPS.astype(np.float32))
    assert caption["words"] == ["a", "dog"]
    assert caption["chances"] == pytest.approx([np.exp(-0.5), 1])
    assert caption["gates"] == [0.25, 1.0]
    assert caption["score"] == -0.5


def test_page_data_has_geometry_and_colormap() -> None:
    data = page_data(page(vmax=0.5, opacity=0.25, style="light", colormap="viridis"))
    assert data["grid"] == [3, 5]
    assert data["scale"] == [0.0, 0.5]
    assert data["clipped"] is True
    assert (data["opacity"], data["style"]) == (0.25, "light")
    assert data["geometry"]["region"] == [0.0, 0.0, 53.0, 31.0]
    glow = np.frombuffer(base64.b64decode(data["glow"]), np.uint8).reshape(256, 3)
    np.testing.assert_array_equal(glow[-1], colormap_lut("viridis")[-1])


def test_scale_is_the_peak_of_the_median_word_of_the_first_caption() -> None:
    three = PageCaption(("a", "b", "c"), np.array([[[0.1, 0.2]], [[0.9, 0.0]], [[0.3, 0.0]]]))
    brighter = PageCaption(("d",), np.array([[[7.0, 7.0]]]))
    assert page_data(page(three, brighter))["scale"][1] == pytest.approx(0.3)
    assert page_data(page(PageCaption(("a",), np.zeros((1, 2, 2)))))["scale"][1] == 1.0


@pytest.mark.parametrize(
    ("size", "shown"), [((31, 53), (31, 53)), ((1500, 3000), (640, 1280)), ((3000, 30), (1280, 13))]
)
def test_page_embeds_the_photo_with_its_aspect_ratio(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    text = page(size=size)
    content = text.split("data:image/jpeg;base64,")[1].split('"')[0]
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == shown[::-1]
    assert page_data(text)["size"] == list(shown)
    assert f"--ratio: {shown[1] / shown[0]:.6f}" in text
    assert f"{size[1]} × {size[0]}" in text


def test_page_omits_missing_information() -> None:
    (caption,) = page_data(page(PageCaption(WORDS, MAPS)))["captions"]
    assert caption["chances"] == caption["gates"] == caption["phrases"] == []
    assert caption["score"] is None


def test_page_has_phrases_with_boxes_and_scores() -> None:
    phrase = GroundedPhrase(1, 1, ((0.0, 0.25, 0.5, 1.0),), (0.75,), 0.375, pointed=True)
    (caption,) = page_data(page(PageCaption(WORDS, MAPS, phrases=(phrase,))))["captions"]
    assert caption["phrases"] == [
        {
            "first": 1,
            "words": 1,
            "boxes": [[0.0, 0.25, 0.5, 1.0]],
            "correctness": [0.75],
            "baseline": 0.375,
            "pointed": True,
        }
    ]


def test_back_link_is_shown_if_set() -> None:
    assert 'href="./index.html"' in page(index="index.html")
    assert "href=" not in re.sub(r'<link rel="icon" href="data:,">', "", page())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"words": (), "maps": np.zeros((0, 3, 5))}, "needs at least one word"),
        ({"maps": MAPS[:1]}, "maps must have 2 entries, one per word, got 1"),
        ({"gates": (0.5,)}, "gates must have 2 entries, one per word, got 1"),
        ({"log_probs": (0.0,) * 3}, "log_probs must have .* got 3"),
    ],
)
def test_mismatching_numbers_of_words_and_maps_are_refused(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        PageCaption(**{"words": WORDS, "maps": MAPS, **change})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"captions": []}, "at least one caption"),
        ({"captions": [DOG, PageCaption(WORDS, MAPS[:, :2])]}, "must have the same grid"),
        (
            {"geometry": Geometry.identity((53, 31)).to_dict()},
            r"belong to an image of size \(53, 31\)",
        ),
        ({"vmax": 0.0}, "must be above 0, got 0.0"),
        ({"vmax": float("nan")}, "must be above 0, got nan"),
        ({"opacity": 1.5}, "opacity must be between 0 and 1"),
        ({"colormap": "magna"}, "did you mean magma"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], reason: str) -> None:
    arguments = {
        "image": np.zeros((31, 53, 3), np.uint8),
        "captions": [DOG],
        "geometry": Geometry.identity((31, 53)).to_dict(),
    }
    with pytest.raises(ValueError, match=reason):
        caption_page(**{**arguments, **change})
