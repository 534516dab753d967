"""Data in HTML pages of photos: captions, questions, methods and heads."""

import base64
import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from page_results import caption_of, explained_model, layer_of, method_map
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.pipelines.layer_attention import MAX_WEIGHTS
from visattn.recording.model_info import AttentionLayer
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.scale import MapScale
from visattn.results.values import Answer
from visattn.viz.heatmap import colormap_lut
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.explorer_page import explorer_html, quantize_weights
from visattn.viz.html.question_page import answer_html

RNG = np.random.default_rng(2)
SIZE = (31, 53)
PLACE = Geometry.identity(SIZE)
MAPS = RNG.random((2, 3, 5))
DOG = caption_of(("a", "dog"), MAPS, SIZE, (-0.5, 0.0), (0.25, 1.0))
HOPS = AttentionMap(torch.from_numpy(MAPS), "hops", "tokens", PLACE, labels=("hop 1", "<hop 2>"))
SHARES = (("yes", 0.75), ("<no>", 0.25))
WEIGHTS = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
RED = Answer("Red <ring>?", ("red", "<ring>"), SHARES, HOPS, WEIGHTS)
ROWS = RNG.random((3, 7, 2, 3))
LAYER = layer_of(4, ROWS, ("class",), 1)
METHOD = method_map("Grad-CAM", RNG.normal(size=(5, 7)), PLACE, signed=True)


def caption_page(
    caption: Caption | dict[str, Caption] = DOG, size: tuple[int, int] = SIZE, **options: Any
) -> str:
    return caption_html(np.zeros((*size, 3), np.uint8), caption, **options)


def explorer_page(size: tuple[int, int] = SIZE, **options: Any) -> str:
    scale = MapScale("image", 0.0, 1.5, signed=True)
    options = {"layers": [LAYER], "maps": [METHOD], "scales": [scale], **options}
    photo = LoadedImage(np.zeros((*size, 3), np.uint8))
    return explorer_html(photo, PLACE, **{"subject": explained_model(), **options})


def question_page(*answers: Answer) -> str:
    return answer_html(np.zeros((*SIZE, 3), np.uint8), answers)


def unpacked(value: dict[str, Any]) -> Any:
    """Return an array of a page: bytes or float32."""
    if len(value) == 1 and {*value} <= {"u1", "f4"}:
        [(kind, text)] = value.items()
        return np.frombuffer(base64.b64decode(text), f"<{kind}")
    return value


def page_data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    assert found is not None
    return json.loads(found[1], object_hook=unpacked)


def facts_of(view: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["text"] for each in (*view["facts"], *view.get("details", ()))}


def test_words_have_exact_maps_numbers_and_the_drawing_of_the_options() -> None:
    data = page_data(caption_page(vmax=0.5, opacity=0.25, style="light", colormap="viridis"))
    (row,) = data["rows"]
    for view, values in zip([*row["views"], row["mean"]], [*MAPS, MAPS.mean(0)], strict=True):
        np.testing.assert_allclose(view["values"], values.ravel(), rtol=1e-6)
        assert view["grid"] == [3, 5]
        assert view["scale"] == [0.0, 0.5]
        assert view["range"][1] == pytest.approx(MAPS.max())
    first = row["views"][0]
    assert [(each["kind"], each["text"]) for each in first["facts"]] == [
        ("chance", "61 %"), ("gate", "0.25")
    ]  # fmt: skip
    assert [each["share"] for each in first["facts"]] == pytest.approx([np.exp(-0.5), 0.25])
    assert (first["label"], first["which"], row["score"]) == ("a", "Word 1 of 2", "\u22120.50")
    assert (data["opacity"], data["style"]) == (0.25, "light")
    assert data["geometry"]["region"] == [0.0, 0.0, 53.0, 31.0]
    colors = data["tables"]["heat"]["colors"].reshape(256, 3)
    np.testing.assert_array_equal(colors[-1], colormap_lut("viridis")[-1])
    bare = page_data(caption_page(caption_of(("a", "dog"), MAPS, SIZE)))["rows"][0]
    assert all(view["facts"] == [] and view["about"] is None for view in bare["views"])


def test_captions_share_a_scale_and_models_have_their_own() -> None:
    brighter = caption_of(("d",), 7 * np.ones((1, 2, 3)), SIZE)
    peaks = np.array([0.7, 0.9, 0.8])[:, None, None]
    dim = caption_of(("a", "b", "c"), peaks * np.ones((2, 3)), SIZE)
    data = page_data(caption_page(replace(dim, alternatives=(brighter,))))
    for view in (view for row in data["rows"] for view in row["views"]):
        assert view["scale"] == pytest.approx([0.0, dim.maps.display_range()[1]])
        assert view["range"][1] == 7
    assert data["first"] == 1  # that with the clearest map
    assert page_data(caption_page(replace(dim, words=("x", "The", "y"))))["first"] == 2  # a name
    other = caption_of(("d",), 7 * np.ones((1, 2, 4)), SIZE, alternatives=(DOG,))
    data = page_data(caption_page({"soft": DOG, "hard": other}))
    soft, hard = data["rows"]  # of several models, the best caption of each
    assert (soft["name"], hard["name"], data["together"]) == ("soft", "hard", True)
    (view,) = hard["views"]
    assert (view["grid"], view["scale"], view["even"]) == ([2, 4], [0.0, 7.0], 1 / 8)


def test_phrases_have_boxes_and_scores() -> None:
    box = (0.0, 0.25, 0.5, 1.0)
    known = replace(DOG, phrases=(GroundedPhrase(1, 1, (box,), (0.75,), 0.375, pointed=True),))
    article, noun = page_data(caption_page(known))["rows"][0]["views"]
    assert article["about"] == {"title": "No boxes are known for this word", "facts": []}
    assert (noun["boxes"], noun["about"]["title"]) == ([[*box]], "dog")
    assert facts_of(noun["about"]) == {
        "Inside the boxes": "0.75", "Uniform attention": "0.38", "Difference": "+0.38",
        "Peak of the phrase": "inside \u2713",
    }  # fmt: skip
    assert noun["about"]["facts"][0]["mark"] == 0.375


@pytest.mark.parametrize(
    ("size", "shown"), [((31, 53), (31, 53)), ((1500, 3000), (640, 1280)), ((3000, 30), (1280, 13))]
)
def test_a_page_embeds_the_photo_with_its_aspect_ratio(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    text = caption_page(caption_of(("a", "dog"), MAPS, size), size, index="index.html")
    content = text.split("data:image/jpeg;base64,")[1].split('"')[0]
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == shown[::-1]
    assert page_data(text)["size"] == list(shown)
    assert f"--ratio: {shown[1] / shown[0]:.6f}" in text
    assert f"{size[1]} × {size[0]}" in text
    assert 'href="./index.html"' in text
    assert '<a class="back"' not in caption_page()


@pytest.mark.parametrize("name", ["$width.png", "b$$c.png", "<b>.png"])
def test_the_name_of_a_photo_is_text(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (SIZE[1], SIZE[0])).save(tmp_path / name)
    text = caption_html(tmp_path / name, DOG)
    assert f">{html.escape(name)}<" in text
    assert tmp_path.name not in text


def test_steps_of_a_question_have_exact_maps_on_one_scale() -> None:
    text = question_page(RED, Answer("Left?", ("left",), (("no", 1.0),), None))
    first, second = page_data(text)["rows"]
    for view, values, weights in zip(first["views"], MAPS, WEIGHTS, strict=True):
        np.testing.assert_allclose(view["values"], values.ravel(), rtol=1e-6)
        assert view["scale"] == [0.0, pytest.approx(MAPS.max())]
        assert view["weights"] == weights.tolist()
    assert first["most"] == 0.75
    assert facts_of(first) == {"yes": "75 %", "<no>": "25 %"}
    assert (second["views"], second["answer"], second["tokens"]) == ([], "no", ["left"])
    for markup in ("<ring>", "<no>", "<hop 2>"):
        assert markup not in text


@given(st.integers(0, 999))
def test_quantization_error_is_below_1_of_250_of_the_row_maximum(seed: int) -> None:
    weights = np.random.default_rng(seed).random((2, 3, 5, 7)) ** 6
    weights[0, 0] = 0
    codes, tops = quantize_weights(weights)
    back = (codes / 255.0) ** 2 * tops[..., None, None]
    assert (np.abs(back - weights) <= tops[..., None, None] / 250).all()


def test_an_explorer_has_weights_and_maps() -> None:
    pool, rows = layer_of(1, ROWS[:, :1]), layer_of(0, ROWS[:, :1], ("class",))
    data = page_data(explorer_page(layers=[LAYER, rows, pool]))
    layer, (item,) = data["layers"][0], data["rows"][0]["views"]
    values = (layer["codes"] / 255) ** 2 * np.repeat(layer["tops"], 6)
    np.testing.assert_allclose(values, ROWS.ravel(), atol=0.004)
    assert (layer["number"], layer["count"], layer["query_roles"]) == (4, 7, ["class"])
    assert [each["is_pooling"] for each in data["layers"]] == [False, False, True]
    np.testing.assert_allclose(item["values"], METHOD.values.ravel(), rtol=1e-6)
    assert item["range"] == pytest.approx([float(METHOD.values.min()), float(METHOD.values.max())])
    assert data["pooled"] == ""
    assert MAX_WEIGHTS * 4 / 3 < 14_000_000  # a large model fits into 15 megabytes


def test_facts_name_layers_and_write_signs() -> None:
    info = {"options": {"layers": -1, "signed": True, "shift": -2}, "layer": "bn2"}
    negative = method_map("a", -np.ones((2, 2)), PLACE, **info)
    (view,) = page_data(explorer_page(maps=[negative]))["rows"][0]["views"]
    facts = facts_of(view)
    assert (facts["Layers"], facts["Signed"], facts["Shift"]) == ("bn2", "yes", "\u22122")


def test_averaged_queries_are_reported() -> None:
    model, layer = explained_model(), AttentionLayer(LAYER.site, (4, 6), 3, ("class",))
    info = replace(model.info, attention_layers=(layer,))
    data = page_data(explorer_page(subject=replace(model, info=info)))
    assert "4 × 6 patches to 2 × 3" in data["pooled"]
    assert data["layers"][0]["averaged"]


NAN = method_map("a", np.full((2, 2), np.nan), PLACE)
REFUSALS: list[tuple[Callable[[], str], str]] = [
    (lambda: caption_page(size=(53, 31)), r"belong to an image of size \(31, 53\)"),
    (lambda: caption_page(replace(DOG, maps=replace(DOG.maps, geometry=None))), "have no geometry"),
    (lambda: caption_page(vmax=float("nan")), "must be above 0, got nan"),
    (lambda: caption_page(colormap="magna"), "did you mean magma"),
    (lambda: explorer_page((7, 5)), "pass the original image"),
    (lambda: explorer_page(layers=[], maps=[], scales=[]), "at least one attention layer"),
    (lambda: explorer_page(maps=[NAN]), "must be finite"),
    (question_page, "at least one question"),
]


@pytest.mark.parametrize(("call", "reason"), REFUSALS)
def test_invalid_inputs_are_refused(call: Callable[[], str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()
