"""Where scales begin and end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import visattn as va
from visattn.geometry.affine import Geometry
from visattn.pipelines.scale import MapScale, blankness, map_scale
from visattn.recording.attention_map import AttentionMap


def a_map(values: Any, kind: Any = "gradient", **made: Any) -> AttentionMap:
    return AttentionMap(torch.as_tensor(values).float(), "site", kind, made=made)


def test_a_map_shows_in_full_at_its_highest_value() -> None:
    assert map_scale([a_map([[0.5, 2.0]])]) == MapScale("image", 0.0, 2.0)


def test_attention_that_is_everywhere_stays_faint() -> None:
    even = a_map(torch.full((5, 7), 1 / 35), "tokens")
    assert map_scale([even]).high == pytest.approx(4 / 35)
    assert map_scale([even, a_map(np.eye(7), "tokens")], "global").high == 1.0


def test_signed_maps_are_shown_by_their_size() -> None:
    scale = map_scale([a_map([[-3.0, 2.0]], signed=True)])
    assert (scale.low, scale.high, scale.signed, scale.text) == (0.0, 3.0, True, "-3 to 3")


def test_of_fine_maps_a_hundredth_may_shine_brighter() -> None:
    values = np.zeros((97, 101))
    values.flat[:200] = 1.0
    values.flat[:7] = 50.0
    assert map_scale([a_map(values)]).high == 1.0
    values.flat[7:] = 0.0
    assert map_scale([a_map(values)]).high == 50.0


def test_percentiles_leave_out_a_hundredth_at_each_end() -> None:
    values = np.random.default_rng(1).random((31, 37)) + 5
    scale = map_scale([a_map(values)], "percentile")
    ends = np.quantile(values.astype(np.float32).astype(float), [0.01, 0.99])
    assert [scale.low, scale.high] == pytest.approx(ends.tolist())
    assert map_scale([a_map(np.ones((3, 3)))], "percentile") == MapScale("percentile", 0.0, 1.0)


def test_of_rise_the_scale_begins_at_the_lowest_value() -> None:
    one, other = (a_map([[low, 0.9]], method="rise") for low in (0.5, 0.3))
    assert map_scale([one]).text == "0.5 to 0.9"
    assert map_scale([one, other], "global").text == "0.3 to 0.9"
    assert map_scale([a_map(np.full((3, 3), 0.5), method="rise")]).text == "0 to 0.5"


@pytest.mark.parametrize("rule", ["image", "global", "percentile"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
def test_what_cannot_be_drawn_has_a_scale_all_the_same(rule: Any, bad: float) -> None:
    scale = map_scale([a_map(np.full((3, 5), bad))], rule)
    assert 0 == scale.low < scale.high < np.inf


def test_blank_maps_are_told() -> None:
    assert blankness(torch.zeros(2, 3)) == "the map is zero everywhere"
    assert blankness(torch.tensor([[np.nan, 1.0]])) == "the map holds NaN or infinity"
    assert blankness(torch.tensor([[-1.0, 0.0]])) == ""


@pytest.mark.parametrize(("count", "rule"), [(0, "image"), (1, "fair")])
def test_what_makes_no_scale(count: int, rule: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"a scale needs maps|Literal"):
        map_scale([a_map([[1.0]])] * count, rule)


def test_an_overlay_takes_the_scale_and_the_signs_of_its_map() -> None:
    photo, place = np.full((4, 6, 3), 120, np.uint8), Geometry.identity((4, 6))
    one = replace(a_map([[-2.0, 2.0]], signed=True), geometry=place)
    left, right = np.array(va.overlay(photo, one, smooth=False))[0, [0, 5]].tolist()
    assert left == right[::-1] != right
    rise = replace(a_map([[0.5, 1.5]], method="rise"), geometry=place)
    plain = replace(a_map([[0.0, 1.0]]), geometry=place)
    np.testing.assert_array_equal(va.overlay(photo, rise), va.overlay(photo, plain))
    fixed = va.overlay(photo, rise, high=3.0)
    assert fixed.getpixel((0, 0)) != va.overlay(photo, rise).getpixel((0, 0))
