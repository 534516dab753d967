"""Affine geometry between the network input and the image."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry

SIDES = st.integers(2, 97)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Draw a chain of up to five preprocessing steps."""
    made = Geometry.identity((draw(SIDES), draw(SIDES)))
    for step in draw(st.lists(st.sampled_from(["resize", "crop", "pad", "flip"]), max_size=5)):
        y, x = made.input_size
        if step == "resize":
            made = made.resized((draw(SIDES), draw(SIDES)))
        elif step == "crop":
            top, left = draw(st.integers(0, y - 1)), draw(st.integers(0, x - 1))
            size = draw(st.integers(1, y - top)), draw(st.integers(1, x - left))
            made = made.cropped(top, left, size)
        elif step == "pad":
            top, left = draw(st.integers(0, 7)), draw(st.integers(0, 7))
            made = made.padded(top, left, (y + top + draw(st.integers(0, 7)), x + left + 3))
        else:
            made = made.flipped()
    return made


@given(geometry=geometries(), place=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_forward_and_inverse_are_inverse(geometry: Geometry, place: tuple[float, float]) -> None:
    point = torch.tensor([place], dtype=torch.float64) * 100
    there = geometry.to_image(point)
    torch.testing.assert_close(geometry.to_input(there), point, rtol=0, atol=1e-6)


@given(geometry=geometries())
def test_visible_region_is_inside_the_image(geometry: Geometry) -> None:
    left, top, right, bottom = geometry.region
    height, width = geometry.image_size
    assert -1e-9 <= left <= right <= width + 1e-9
    assert -1e-9 <= top <= bottom <= height + 1e-9


def test_each_step_by_hand() -> None:
    start = Geometry.identity((10, 20))
    corner = torch.tensor([[1.0, 2.0]])
    assert start.to_image(corner).tolist() == [[1, 2]]
    assert start.resized((5, 5)).to_image(corner).tolist() == [[4, 4]]
    assert start.cropped(3, 4, (5, 6)).to_image(corner).tolist() == [[5, 5]]
    assert start.padded(3, 4, (20, 30)).to_image(corner).tolist() == [[-3, -1]]
    assert start.flipped().to_image(corner).tolist() == [[19, 2]]
    assert start.cropped(3, 4, (5, 6)).flipped().to_image(corner).tolist() == [[9, 5]]


def test_regions_of_crops_and_paddings_by_hand() -> None:
    cut = Geometry.identity((10, 20)).cropped(2, 5, (6, 10))
    assert cut.region == (5, 2, 15, 8)
    assert cut.padded(4, 4, (14, 18)).region == (5, 2, 15, 8)
    assert cut.padded(4, 4, (14, 18)).cropped(0, 0, (7, 18)).region == (5, 2, 15, 5)
    bars = Geometry.identity((4, 4)).padded(6, 6, (12, 12))
    beside, above = bars.cropped(6, 0, (4, 3)), bars.cropped(0, 6, (3, 4))
    assert beside.region == (0, 0, 0, 4)
    assert above.region == (0, 0, 4, 0)
    assert beside.seen_share == above.seen_share == 0


def test_boxes_are_clipped_to_the_visible_region() -> None:
    visible = Geometry.identity((10, 20)).cropped(0, 10, (10, 10)).resized((5, 5))
    boxes = torch.tensor([[0.0, 0.0, 20.0, 10.0], [12.0, 1.0, 14.0, 3.0], [0.0, 0.0, 5.0, 5.0]])
    shares = visible.boxes_to_input(boxes)
    torch.testing.assert_close(shares[0], torch.tensor([0.0, 0.0, 1.0, 1.0]))
    torch.testing.assert_close(shares[1], torch.tensor([0.2, 0.1, 0.4, 0.3]))
    assert shares[2, 0] == shares[2, 2] == 0
    flipped = visible.flipped()
    torch.testing.assert_close(flipped.boxes_to_input(boxes)[1], torch.tensor([0.6, 0.1, 0.8, 0.3]))
    for each in (visible, flipped):  # and back, without what is not visible
        back = each.boxes_to_image(each.boxes_to_input(boxes))
        torch.testing.assert_close(back[:2], torch.tensor([[10.0, 0, 20, 10], [12, 1, 14, 3]]))


START = Geometry.identity((5, 7))
REFUSED: list[tuple[Callable[[], Geometry], str]] = [
    (lambda: replace(START, input_size=(0, 5)), "at least one pixel"),
    (lambda: replace(START, region=(0.0, 0.0, math.inf, 5.0)), "finite numbers"),
    (lambda: replace(START, matrix=((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0))),
     "scale, translate or flip"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), REFUSED)
def test_what_is_no_geometry_is_refused(call: Callable[[], Geometry], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


@given(geometry=geometries())
def test_seen_share_is_the_area_of_pixels_inside_the_region(geometry: Geometry) -> None:
    left, top, right, bottom = geometry.region
    height, width = geometry.image_size
    fine = 8  # samples along each side of a pixel
    x = (np.arange(width * fine) + 0.5) / fine
    y = (np.arange(height * fine) + 0.5) / fine
    inside = ((x > left) & (x < right)).mean() * ((y > top) & (y < bottom)).mean()
    assert abs(geometry.seen_share - inside) <= 2 / fine / min(height, width)
    assert bool(geometry.seen_text) == (geometry.seen_share < 0.985)


def test_seen_text_of_a_panorama() -> None:
    panorama = Geometry.identity((520, 2560)).cropped(0, 1020, (520, 520)).resized((224, 224))
    assert panorama.seen_text == "the model saw 20 % of the photo"
    for columns, share in ((1, "1"), (0, "<1")):
        edge = Geometry.identity((10, 100)).padded(0, 5, (10, 105)).cropped(0, 0, (10, 5 + columns))
        assert edge.seen_text == f"the model saw {share} % of the photo"
