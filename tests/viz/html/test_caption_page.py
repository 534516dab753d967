"""Data in HTML pages of captions."""

import base64
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caption_results import caption_of
from PIL import Image

from visattn.results.captions import Caption, GroundedPhrase
from visattn.viz.heatmap import colormap_lut
from visattn.viz.html.caption_page import caption_html

WORDS = ("a", "dog")
MAPS = np.random.default_rng(1).random((2, 3, 5))
SIZE = (31, 53)
DOG = caption_of(WORDS, MAPS, SIZE, (-0.5, 0.0), (0.25, 1.0))


def page(
    caption: Caption | dict[str, Caption] = DOG, size: tuple[int, int] = SIZE, **options: Any
) -> str:
    return caption_html(np.zeros((*size, 3), np.uint8), caption, **options)


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
    assert data["captions"][0]["scale"] == [0.0, 0.5]
    assert data["captions"][0]["peak"] > 0.5
    assert (data["opacity"], data["style"]) == (0.25, "light")
    assert data["geometry"]["region"] == [0.0, 0.0, 53.0, 31.0]
    colors = np.frombuffer(base64.b64decode(data["tables"]["heat"]["colors"]), np.uint8).reshape(
        256, 3
    )
    np.testing.assert_array_equal(colors[-1], colormap_lut("viridis")[-1])


def test_scale_is_the_display_range_of_the_first_caption() -> None:
    brighter = caption_of(("d",), 7 * np.ones((1, 2, 3)), SIZE)
    peaks = np.array([0.7, 0.9, 0.8])[:, None, None]
    dim = caption_of(("a", "b", "c"), peaks * np.ones((2, 3)), SIZE)
    for each in page_data(page(replace(dim, alternatives=(brighter,))))["captions"]:
        assert each["scale"] == pytest.approx([0.0, dim.maps.display_range()[1]])
        assert each["peak"] == 7


def test_captions_of_models_have_their_own_grids_and_scales() -> None:
    other = caption_of(("d",), 7 * np.ones((1, 2, 4)), SIZE)
    data = page_data(page({"soft": DOG, "hard": replace(other, alternatives=(DOG,))}))
    soft, hard = data["captions"]  # of several models, the best caption of each
    assert data["models"] == ["soft", "hard"]
    assert (soft["grid"], hard["grid"]) == ([3, 5], [2, 4])
    assert hard["scale"] == [0.0, 7.0]
    assert hard["even"] == 1 / 8


@pytest.mark.parametrize(
    ("size", "shown"), [((31, 53), (31, 53)), ((1500, 3000), (640, 1280)), ((3000, 30), (1280, 13))]
)
def test_page_embeds_the_photo_with_its_aspect_ratio(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    text = page(caption_of(WORDS, MAPS, size), size)
    content = text.split("data:image/jpeg;base64,")[1].split('"')[0]
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == shown[::-1]
    assert page_data(text)["size"] == list(shown)
    assert f"--ratio: {shown[1] / shown[0]:.6f}" in text
    assert f"{size[1]} × {size[0]}" in text


def test_page_omits_missing_information() -> None:
    (caption,) = page_data(page(caption_of(WORDS, MAPS, SIZE)))["captions"]
    assert caption["chances"] == caption["gates"] == caption["phrases"] == []


def test_page_has_phrases_with_boxes_and_scores() -> None:
    phrase = GroundedPhrase(1, 1, ((0.0, 0.25, 0.5, 1.0),), (0.75,), 0.375, pointed=True)
    (caption,) = page_data(page(replace(DOG, phrases=(phrase,))))["captions"]
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


@pytest.mark.parametrize("name", ["$width.png", "b$$c.png", "<b>.png"])
def test_the_name_of_a_photo_is_text(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (SIZE[1], SIZE[0])).save(tmp_path / name)
    text = caption_html(tmp_path / name, DOG)
    assert f">{html.escape(name)}<" in text
    assert tmp_path.name not in text


def test_back_link_is_shown_if_set() -> None:
    assert 'href="./index.html"' in page(index="index.html")
    assert '<a class="back"' not in page()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": (53, 31)}, r"belong to an image of size \(31, 53\)"),
        ({"caption": replace(DOG, maps=replace(DOG.maps, geometry=None))}, "have no geometry"),
        ({"vmax": 0.0}, "must be above 0, got 0.0"),
        ({"vmax": float("nan")}, "must be above 0, got nan"),
        ({"opacity": 1.5}, "opacity must be between 0 and 1"),
        ({"colormap": "magna"}, "did you mean magma"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        page(**change)
