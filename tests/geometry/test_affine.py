"""Affine geometry between the network input and the image."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from visattn.geometry.affine import Geometry


def test_each_step_by_hand() -> None:
    start = Geometry.identity((10, 20))
    corner = torch.tensor([[1.0, 2.0]])
    assert start.to_image(corner).tolist() == [[1, 2]]
    assert start.resized((5, 5)).to_image(corner).tolist() == [[4, 4]]
    assert start.cropped(3, 4, (5, 6)).to_image(corner).tolist() == [[5, 5]]
    assert start.padded(3, 4, (20, 30)).to_image(corner).tolist() == [[-3, -1]]
    assert start.flipped().to_image(corner).tolist() == [[19, 2]]
    assert start.cropped(3, 4, (5, 6)).flipped().to_image(corner).tolist() == [[9, 5]]


def test_padding_does_not_restore_cropped_regions() -> None:
    cut = Geometry.identity((10, 20)).cropped(2, 5, (6, 10))
    assert cut.region == (5, 2, 15, 8)
    assert cut.padded(4, 4, (14, 18)).region == (5, 2, 15, 8)
    assert cut.padded(4, 4, (14, 18)).cropped(0, 0, (7, 18)).region == (5, 2, 15, 5)


def test_crop_of_padding_has_an_empty_region() -> None:
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


def test_seen_text_of_a_panorama() -> None:
    panorama = Geometry.identity((520, 2560)).cropped(0, 1020, (520, 520)).resized((224, 224))
    assert panorama.seen_text == "the model saw 20 % of the photo"
    for columns, share in ((1, "1"), (0, "<1")):
        edge = Geometry.identity((10, 100)).padded(0, 5, (10, 105)).cropped(0, 0, (10, 5 + columns))
        assert edge.seen_text == f"the model saw {share} % of the photo"
