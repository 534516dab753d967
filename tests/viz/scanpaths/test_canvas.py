"""Image placement and glimpse mosaics."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.models.glimpses.retina import Retina
from visattn.viz.canvas import TRACK
from visattn.viz.scanpaths.path import draw_patch, glimpse_mosaic, patch_to_rgb, place_image

INSIDE = np.array([[[2.0, 2, 6, 6]]])


@given(
    height=st.integers(1, 700),
    width=st.integers(1, 700),
    x=st.floats(-900, 900),
    y=st.floats(-900, 900),
    max_margin=st.sampled_from([0.0, 0.15]),
)
def test_boxes_stay_on_the_canvas(
    height: int, width: int, x: float, y: float, max_margin: float
) -> None:
    box = np.array([[[x, y, x + 12, y + 12]]])
    view = place_image((height, width), box, (300, 400), max_margin=max_margin)
    assert view.canvas_size[0] <= 303
    assert view.canvas_size[1] <= 403
    left, top, right, bottom = view.image_area
    assert 0 <= left < right <= view.canvas_size[1]
    assert 0 <= top < bottom <= view.canvas_size[0]


def test_image_that_contains_its_boxes_has_no_margin() -> None:
    view = place_image((28, 21), INSIDE, (400, 400))
    assert view.canvas_size == view.image_size == (28 * 14, 21 * 14)  # whole squares
    assert view.offset == (0, 0)


def test_large_images_are_downscaled() -> None:
    view = place_image((480, 640), INSIDE, (400, 400))
    assert view.canvas_size == (300, 400)
    assert view.scale == (0.625, 0.625)


def test_margin_follows_the_finest_window_up_to_max_margin() -> None:
    out = np.array([[[-2.0, 8, 6, 16], [-6, 4, 10, 20]], [[15.0, 39, 23, 47], [0, 0, 99, 99]]])
    view = place_image((40, 20), out, (400, 400))
    assert view.offset == (2 * view.scale[0], 0)
    assert view.canvas_size == ((40 + 6) * view.scale[1], (20 + 2 + 3) * view.scale[0])


def test_boxes_follow_their_pixels() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    image[4:9, 21:29] = 255
    box = np.array([[[21.0, 4, 29, 9]], [[-3.0, 0, 5, 8]]])
    view = place_image((20, 30), box, (200, 200))
    canvas = view.paste_image(image)
    left, top, right, bottom = view.boxes_on_canvas(box)[0, 0].astype(int)
    white = np.argwhere((canvas == 255).all(2))
    assert [*white.min(0), *(white.max(0) + 1)] == [top, left, bottom, right]
    assert (canvas[:, : view.offset[0]] == TRACK).all()
    np.testing.assert_allclose(
        view.boxes_on_canvas(box) - view.boxes_on_resized_image(box),
        np.tile([view.offset * 2], (2, 1, 1)),
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1)])
def test_thin_images_keep_at_least_a_pixel(size: tuple[int, int]) -> None:
    assert min(place_image(size, INSIDE, (200, 200), max_margin=0).image_size) >= 1


RNG = np.random.default_rng(5)


def looked(
    image: np.ndarray, places: list[tuple[float, float]], *, glimpse: int, scales: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return patches and boxes of glimpses of an image `[c, y, x]`."""
    at, size = torch.tensor(places), (image.shape[1], image.shape[2])
    retina = Retina(glimpse, scales, torch.zeros(len(image)))
    pyramid = retina.pyramid(torch.from_numpy(image)[None].float())
    patches = retina(pyramid, at, torch.zeros(len(places), dtype=torch.long))
    boxes = retina.boxes(at, size)
    return patches.round().byte().numpy(), boxes.numpy()


def test_single_scale_mosaic_equals_the_image_inside_the_glimpses() -> None:
    image = RNG.integers(60, 256, (3, 13, 17), dtype=np.uint8)
    patches, boxes = looked(image, [(-0.9, -0.9), (0.2, 0.3), (1.0, 0.0)], glimpse=5, scales=1)
    drawn = glimpse_mosaic(patches, boxes, (13, 17))
    visible = np.zeros((13, 17), bool)
    for left, top, right, bottom in boxes[:, 0].astype(int):
        visible[max(top, 0) : bottom, max(left, 0) : right] = True
    np.testing.assert_array_equal(drawn[visible], image.transpose(1, 2, 0)[visible])
    assert (drawn[~visible] < 60).all()
    assert 0 < visible.sum() < visible.size


@pytest.mark.parametrize("larger", [1, 3, 7])
def test_larger_mosaic_has_larger_squares(larger: int) -> None:
    image = RNG.integers(0, 256, (1, 11, 7), dtype=np.uint8)
    patches, boxes = looked(image, [(0.1, -0.3)], glimpse=4, scales=2)
    small = glimpse_mosaic(patches, boxes, (11, 7))
    large = glimpse_mosaic(patches, boxes * larger, (11 * larger, 7 * larger))
    visible = np.zeros((11, 7), bool)
    left, top, right, bottom = boxes[0, 1].astype(int)
    visible[max(top, 0) : bottom, max(left, 0) : right] = True
    np.testing.assert_array_equal(
        large[np.kron(visible, np.ones((larger, larger))) > 0],
        small.repeat(larger, 0).repeat(larger, 1)[np.kron(visible, np.ones((larger, larger))) > 0],
    )


def test_finer_and_later_glimpses_take_precedence() -> None:
    patches = np.zeros((2, 2, 1, 2, 2), np.uint8)
    patches[0, 0], patches[0, 1], patches[1, 0], patches[1, 1] = 210, 110, 220, 120
    boxes = np.array([[[0.0, 0, 4, 4], [0, 0, 8, 8]], [[2.0, 0, 6, 4], [0, 0, 8, 8]]])
    drawn = glimpse_mosaic(patches, boxes, (8, 8))[..., 0]
    assert drawn[1].tolist() == [210, 210, 220, 220, 220, 220, 120, 120]
    assert (drawn[4:] == 120).all()


def test_fractional_boxes_cover_pixels_with_centers_inside() -> None:
    white = np.full((1, 1, 1, 3, 3), 255, np.uint8)
    drawn = glimpse_mosaic(white, np.array([[[1.6, 0.4, 4.5, 2.5]]]), (4, 6))[..., 0] == 255
    assert np.argwhere(drawn).tolist() == [[y, x] for y in (0, 1) for x in (2, 3)]


def test_glimpses_outside_leave_the_mosaic_unchanged() -> None:
    white = np.full((2, 1, 3, 2, 2), 255, np.uint8)
    boxes = np.array([[[-90.0, 0, -80, 10]], [[0.0, 400, 10, 410]]])
    assert (glimpse_mosaic(white, boxes, (9, 9)) < 60).all()


def test_gray_is_equal_in_all_channels_and_colors_are_kept() -> None:
    assert draw_patch(np.full((1, 2, 2), 7, np.uint8), 9).tolist() == [[[7, 7, 7]] * 9] * 9
    item = np.array([[[1]], [[2]], [[3]]], np.uint8)
    assert patch_to_rgb(item).tolist() == [[[1, 2, 3]]]


def test_golden_image_of_a_mosaic(golden: Callable[[str, np.ndarray], None]) -> None:
    y, x = np.mgrid[:60, :90]
    waves = 128 + 100 * np.sin(x / 6) * np.cos(y / 9)
    image = np.stack([waves, 255 - waves, 2.5 * x]).clip(0, 255).astype(np.uint8)
    patches, boxes = looked(image, [(-0.7, -0.5), (0.1, 0.2), (0.9, -0.2)], glimpse=8, scales=3)
    golden("scan_mosaic", glimpse_mosaic(patches, boxes, (60, 90)))
