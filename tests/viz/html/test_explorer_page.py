"""Data in HTML pages of the attention explorer."""

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from explorer_results import explained_model, layer_of, method_map
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.pipelines.layer_attention import MAX_WEIGHTS
from visattn.recording.model_info import AttentionLayer
from visattn.results.scale import MapScale
from visattn.viz.html.explorer_page import explorer_html, quantize_weights

RNG = np.random.default_rng(2)
WEIGHTS = RNG.random((3, 7, 2, 3))
PLACE = Geometry.identity((31, 53))
LAYER = layer_of(4, WEIGHTS, ("class",), 1)
MAP = method_map("Grad-CAM", RNG.normal(size=(5, 7)), PLACE, signed=True)
SCALE = MapScale("image", 0.0, 1.5, signed=True)


def page(size: tuple[int, int] = (31, 53), **options: Any) -> str:
    options = {"layers": [LAYER], "maps": [MAP], "scales": [SCALE], **options}
    photo = LoadedImage(np.zeros((*size, 3), np.uint8))
    return explorer_html(photo, PLACE, subject=explained_model(), **options)


def page_data(text: str) -> dict[str, Any]:
    actual = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text)
    assert actual is not None
    return json.loads(actual[1])


@given(st.integers(0, 999))
def test_quantization_error_is_below_1_of_250_of_the_row_maximum(seed: int) -> None:
    weights = np.random.default_rng(seed).random((2, 3, 5, 7)) ** 6
    codes, tops = quantize_weights(weights)
    back = (codes / 255.0) ** 2 * tops[..., None, None]
    assert (np.abs(back - weights) <= tops[..., None, None] / 250).all()


def test_zero_rows_stay_zero() -> None:
    codes, tops = quantize_weights(np.zeros((1, 2, 3, 3)))
    assert not codes.any()
    assert not tops.any()


def test_page_data_has_weights_and_maps() -> None:
    data = page_data(page())
    (layer,), (item,) = data["layers"], data["maps"]
    codes = np.frombuffer(base64.b64decode(layer["codes"]), np.uint8).reshape(3, 7, 2, 3)
    tops = np.frombuffer(base64.b64decode(layer["tops"]), "<f4").reshape(3, 7)
    np.testing.assert_allclose((codes / 255) ** 2 * tops[..., None, None], WEIGHTS, atol=0.004)
    assert (layer["number"], layer["count"], layer["query_roles"]) == (4, 7, ["class"])
    values = np.frombuffer(base64.b64decode(item["values"]), "<f4").reshape(5, 7)
    np.testing.assert_array_equal(values, MAP.values.numpy().astype(np.float32))
    assert item["ends"] == "≤ \N{MINUS SIGN}1.5 to ≥ 1.5"
    assert item["range"] == [values.min(), values.max()]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"layers": [], "maps": [], "scales": []},
            "at least one attention layer or attribution map",
        ),
        ({"maps": [method_map("a", np.full((2, 2), np.nan), PLACE)]}, "must be finite"),
        ({"opacity": 1.5}, "opacity must be between 0 and 1"),
        ({"colormap": "mud"}, "unknown colormap 'mud'"),
    ],
)
def test_invalid_inputs_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        page(**options)


def test_maps_of_another_image_are_refused() -> None:
    with pytest.raises(ValueError, match="pass the original image"):
        page((7, 5))


def test_class_rows_and_pooling_layers_are_supported() -> None:
    rows = layer_of(0, WEIGHTS[:, :1], ("class",))
    pool = layer_of(1, WEIGHTS[:, :1])
    assert [each["is_pooling"] for each in page_data(page(layers=[rows, pool]))["layers"]] == [
        False, True,
    ]  # fmt: skip


def test_facts_name_layers_and_write_signs() -> None:
    info = {"options": {"layers": -1, "signed": True, "shift": -2}, "layer": "bn2"}
    negative = method_map("a", -np.ones((2, 2)), PLACE, **info)
    facts = dict(page_data(page(maps=[negative]))["maps"][0]["facts"])
    assert facts["Layers"] == "bn2"
    assert facts["Signed"] == "yes"
    assert facts["Shift"] == "\N{MINUS SIGN}2"
    assert facts["Values"] == "\N{MINUS SIGN}1 to \N{MINUS SIGN}1"


def test_averaged_queries_are_reported() -> None:
    assert page_data(page())["pooled"] == ""
    model = explained_model()
    info = replace(
        model.info, attention_layers=(AttentionLayer(LAYER.site, (4, 6), 3, ("class",)),)
    )
    text = explorer_html(
        LoadedImage(np.zeros((31, 53, 3), np.uint8)),
        PLACE,
        subject=replace(model, info=info),
        layers=[LAYER],
    )
    data = page_data(text)
    assert "4 \N{MULTIPLICATION SIGN} 6 patches to 2 \N{MULTIPLICATION SIGN} 3" in data["pooled"]
    assert data["layers"][0]["averaged"]


def test_the_weights_of_a_large_model_fit_into_15_megabytes() -> None:
    assert MAX_WEIGHTS * 4 / 3 < 14_000_000
