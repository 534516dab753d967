"""Data in HTML pages of the attention explorer."""

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry
from visattn.viz.html.explorer_page import (
    ExplorerLayer,
    ExplorerMap,
    explorer_page,
    quantize_weights,
)

RNG = np.random.default_rng(2)
WEIGHTS = RNG.random((3, 7, 2, 3))
LAYER = ExplorerLayer(4, "blocks.4", WEIGHTS, (0, 1, 2), (2, 3), ("class",), (2, 3), 1)
MAP = ExplorerMap("Grad-CAM", RNG.normal(size=(5, 7)), 0.0, 1.5, signed=True)


def page(size: tuple[int, int] = (31, 53), **options: Any) -> str:
    options = {"layers": [LAYER], "maps": [MAP], **options}
    return explorer_page(
        np.zeros((*size, 3), np.uint8), Geometry.identity(size).to_dict(), **options
    )


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
    np.testing.assert_array_equal(values, MAP.values.astype(np.float32))
    assert item["range"] == "\N{MINUS SIGN}1.5 to 1.5"


def test_page_is_deterministic() -> None:
    assert page() == page()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"layers": [], "maps": []}, "at least one attention layer or attribution map"),
        ({"maps": [ExplorerMap("a", np.full((2, 2), np.nan))]}, "must be finite"),
        ({"opacity": 1.5}, "opacity must be between 0 and 1"),
        ({"colormap": "mud"}, "unknown colormap 'mud'"),
    ],
)
def test_invalid_inputs_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        page(**options)


def test_maps_of_another_image_are_refused() -> None:
    place = Geometry.identity((5, 7)).to_dict()
    with pytest.raises(ValueError, match="pass the original image"):
        explorer_page(np.zeros((7, 5, 3), np.uint8), place, maps=[MAP])


@pytest.mark.parametrize(
    "change",
    [{"heads": (0, 1)}, {"grid": (3, 3)}, {"keys": (3, 2)}, {"query_roles": ("class",) * 3}],
)
def test_mismatching_shapes_are_refused(change: dict[str, Any]) -> None:
    arguments = {"number": 0, "site": "a", "weights": WEIGHTS, "heads": (0, 1, 2), "grid": (2, 3),
             "query_roles": ("class",), "keys": (2, 3), **change}  # fmt: skip
    with pytest.raises(ValueError, match="must be \\[heads, tokens, rows, columns\\]"):
        ExplorerLayer(**arguments)


def test_class_rows_and_pooling_layers_are_supported() -> None:
    assert ExplorerLayer(0, "a", WEIGHTS[:, :1], (0, 1, 2), (2, 3), ("class",), (2, 3)).patches == 0
    assert ExplorerLayer(0, "a", WEIGHTS[:, :1], (0, 1, 2), (2, 3), (), (2, 3)).is_pooling
