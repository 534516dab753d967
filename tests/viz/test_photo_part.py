"""Tiles cropped to what the model saw."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.values import Answer, Segmentation
from visattn.viz.answers import answer_figure
from visattn.viz.captions import caption_figure
from visattn.viz.figures import figure
from visattn.viz.photo_part import PhotoPart
from visattn.viz.segmentation import segmentation_figure

SIDES = st.integers(3, 997)


@given(height=SIDES, width=SIDES, tile=st.tuples(st.integers(8, 300), st.integers(8, 300)))
def test_the_window_holds_nothing_that_was_not_seen(
    height: int, width: int, tile: tuple[int, int]
) -> None:
    geometry = ResizeSpec((64, 64)).geometry((height, width))
    part = PhotoPart.of(geometry, crop=True)
    size, (rows, columns) = part.whole_size(tile), part.window(tile)
    assert (rows.stop - rows.start, columns.stop - columns.start) == tile
    assert rows.stop <= size[0]
    assert columns.stop <= size[1]
    if max(size) > 4000 or part.size == (height, width):
        return
    maps = AttentionMap(torch.ones(2, 2), "x", "gate", geometry)
    assert bool(maps.resize_to_image(size)[rows, columns].isfinite().all())


def test_without_crop_the_part_is_the_photo() -> None:
    geometry = ResizeSpec((64, 64)).geometry((30, 90))
    part = PhotoPart.of(geometry, crop=False)
    assert part.size == (30, 90)
    assert part.whole_size((10, 30)) == (10, 30)


@pytest.mark.parametrize("size", [(40, 4000), (1, 1), (2, 190)])
def test_photos_of_any_shape_can_be_cropped(size: tuple[int, int]) -> None:
    geometry = ResizeSpec((16, 16)).geometry(size)
    spot = AttentionMap(torch.eye(4), "x", "gate", geometry)
    photo = np.zeros((*size, 3), np.uint8)
    assert figure([spot], photo, crop=True, width=600).image.width == 600


def test_boxes_follow_the_crop() -> None:
    geometry = Geometry.identity((50, 200)).cropped(0, 80, (50, 40))
    part = PhotoPart.of(geometry, crop=True)
    [box] = part.boxes_on_tile(np.array([[80.0, 0.0, 120.0, 50.0]]), (100, 80))
    np.testing.assert_allclose(box, [0, 0, 80, 100], atol=1.5)


def test_figures_show_the_middle_of_a_panorama() -> None:
    photo = np.zeros((50, 200, 3), np.uint8)
    photo[:, 80:120] = (10, 200, 30)
    geometry = Geometry.identity((50, 200)).cropped(0, 80, (50, 40))
    spot = AttentionMap(torch.eye(4), "x", "gate", geometry)
    words = AttentionMap(torch.eye(4)[None] / 4, "x", "words", geometry)
    caption = Caption(("dog",), (-0.1,), (), words, -0.1, finished=True)
    answer = Answer("Red?", ("red",), (("yes", 0.9),), replace(spot, values=torch.eye(4)[None]))
    labels = np.ones((50, 200), np.uint8)
    segmentation = Segmentation(labels, ("background", "cat"), (spot,), geometry)
    for drawn in (
        figure([spot], photo, crop=True, width=700),
        caption_figure(photo, caption, crop=True, width=700),
        answer_figure(photo, [answer], crop=True, width=700),
        segmentation_figure(photo, segmentation, crop=True, width=700),
    ):
        page = np.asarray(drawn.image)
        assert (page == (10, 200, 30)).all(-1).sum() > 20_000
        assert not (page == 0).all(-1).any()
    whole = np.asarray(figure([spot], photo, width=700).image)
    assert (whole == 0).all(-1).sum() > 20_000
