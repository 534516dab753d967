"""Color scales of maps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import visattn as va
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.scale import map_scale


def make_map(values: Any, kind: Any = "gradient", **info: Any) -> AttentionMap:
    return AttentionMap(torch.as_tensor(values).float(), "site", kind, info=MapInfo(**info))


def test_uniform_attention_stays_below_full_color() -> None:
    uniform = make_map(torch.full((5, 7), 1 / 35), "tokens")
    assert map_scale([uniform]).vmax == pytest.approx(4 / 35)
    assert map_scale([uniform, make_map(np.eye(7), "tokens")], "global").vmax == 1.0


def test_signed_maps_are_scaled_by_magnitude() -> None:
    scale = map_scale([make_map([[-3.0, 2.0]], signed=True)])
    assert (scale.vmin, scale.vmax, scale.signed) == (0.0, 3.0, True)
    assert scale.text == "\N{MINUS SIGN}3 to 3"


def test_ends_say_what_lies_beyond_them() -> None:
    values = np.zeros((97, 101))
    values.flat[:200] = 1.0
    values.flat[:7] = 50.0
    scale = map_scale([make_map(values)])
    assert (scale.text, scale.note) == ("0 to ≥ 1", "clipped at the 99th percentile")
    rare = np.where(values == 50.0, values, 0.0)  # its 99th percentile is 0
    assert map_scale([make_map(rare)]).vmax == 50.0
    values.flat[7] = -50.0
    scale = map_scale([make_map(values, signed=True)])
    assert scale.text == "≤ \N{MINUS SIGN}1 to ≥ 1"
    assert (scale.values, scale.percentile) == ((-50.0, 50.0), 99)
    whole = map_scale([make_map([[0.5, 2.0]])])
    assert (whole.text, whole.note, whole.percentile) == ("0 to 2", "", None)
    both = map_scale([make_map(np.arange(300.0).reshape(10, 30))], "percentile")
    assert both.text == "≤ 3 to ≥ 296"
    assert both.note == "clipped at the 1st and 99th percentile"


def test_maps_of_rounding_errors_say_so() -> None:
    tiny = make_map(1e-21 * np.eye(3))
    assert map_scale([tiny]).note == "nearly zero"
    assert map_scale([make_map(1e-9 * np.eye(3))]).note == ""
    photo, geometry = np.full((4, 6, 3), 120, np.uint8), Geometry.identity((4, 6))
    with pytest.warns(UserWarning, match="is nearly zero, from 0 to 1e.21"):
        va.overlay(photo, replace(tiny, geometry=geometry))


def test_scale_of_rise_starts_at_the_minimum() -> None:
    first, second = (make_map([[low, 0.9]], method="rise") for low in (0.5, 0.3))
    assert map_scale([first]).text == "0.5 to 0.9"
    assert map_scale([first, second], "global").text == "0.3 to 0.9"
    assert map_scale([make_map(np.full((3, 3), 0.5), method="rise")]).text == "0 to 0.5"


@pytest.mark.parametrize("rule", ["image", "global", "percentile"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
def test_maps_without_finite_values_have_a_finite_scale(rule: Any, bad: float) -> None:
    scale = map_scale([make_map(np.full((3, 5), bad))], rule)
    assert 0 == scale.vmin < scale.vmax < np.inf


@pytest.mark.parametrize(("count", "rule"), [(0, "image"), (1, "median")])
def test_missing_maps_and_unknown_rules_are_refused(count: int, rule: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"a scale needs maps|Literal"):
        map_scale([make_map([[1.0]])] * count, rule)


def test_overlay_uses_the_scale_and_the_sign_of_its_map() -> None:
    photo, geometry = np.full((4, 6, 3), 120, np.uint8), Geometry.identity((4, 6))
    signed = replace(make_map([[-2.0, 2.0]], signed=True), geometry=geometry)
    left, right = np.array(va.overlay(photo, signed, smooth=False))[0, [0, 5]].tolist()
    assert left[2] > left[0]  # blue
    assert right[0] > right[2]  # orange
    rise = replace(make_map([[0.5, 1.5]], method="rise"), geometry=geometry)
    plain = replace(make_map([[0.0, 1.0]]), geometry=geometry)
    np.testing.assert_array_equal(va.overlay(photo, rise), va.overlay(photo, plain))
    fixed = va.overlay(photo, rise, vmax=3.0)
    assert fixed.getpixel((0, 0)) != va.overlay(photo, rise).getpixel((0, 0))
