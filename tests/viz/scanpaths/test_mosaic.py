"""What was seen, put together."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from visattn.functional.glimpses.retina import cropped_glimpses, glimpse_boxes, glimpse_pyramid
from visattn.viz.scanpaths.mosaic import colored, mosaic, patch_tile

RNG = np.random.default_rng(5)


def looked(
    image: np.ndarray, places: list[tuple[float, float]], *, glimpse: int, scales: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return patches and boxes of glimpses at an image `[c, y, x]`."""
    at, size = torch.tensor(places), (image.shape[1], image.shape[2])
    pyramid = glimpse_pyramid(torch.from_numpy(image)[None].float(), scales=scales)
    which = torch.zeros(len(places), dtype=torch.long)
    patches = cropped_glimpses(pyramid, at, glimpse=glimpse, which=which)
    boxes = glimpse_boxes(at, size, glimpse=glimpse, scales=scales)
    return patches.round().byte().numpy(), boxes.numpy()


def test_at_one_scale_it_is_the_image_where_it_was_seen() -> None:
    image = RNG.integers(60, 256, (3, 13, 17), dtype=np.uint8)
    patches, boxes = looked(image, [(-0.9, -0.9), (0.2, 0.3), (1.0, 0.0)], glimpse=5, scales=1)
    drawn = mosaic(patches, boxes, (13, 17))
    seen = np.zeros((13, 17), bool)
    for left, top, right, bottom in boxes[:, 0].astype(int):
        seen[max(top, 0) : bottom, max(left, 0) : right] = True
    np.testing.assert_array_equal(drawn[seen], image.transpose(1, 2, 0)[seen])
    assert (drawn[~seen] < 60).all()
    assert 0 < seen.sum() < seen.size


@pytest.mark.parametrize("larger", [1, 3, 7])
def test_a_larger_drawing_shows_larger_squares(larger: int) -> None:
    image = RNG.integers(0, 256, (1, 11, 7), dtype=np.uint8)
    patches, boxes = looked(image, [(0.1, -0.3)], glimpse=4, scales=2)
    small = mosaic(patches, boxes, (11, 7))
    large = mosaic(patches, boxes * larger, (11 * larger, 7 * larger))
    seen = np.zeros((11, 7), bool)
    left, top, right, bottom = boxes[0, 1].astype(int)
    seen[max(top, 0) : bottom, max(left, 0) : right] = True
    np.testing.assert_array_equal(
        large[np.kron(seen, np.ones((larger, larger))) > 0],
        small.repeat(larger, 0).repeat(larger, 1)[np.kron(seen, np.ones((larger, larger))) > 0],
    )


def test_the_finer_look_counts_and_then_the_later() -> None:
    patches = np.zeros((2, 2, 1, 2, 2), np.uint8)
    patches[0, 0], patches[0, 1], patches[1, 0], patches[1, 1] = 210, 110, 220, 120
    boxes = np.array([[[0.0, 0, 4, 4], [0, 0, 8, 8]], [[2.0, 0, 6, 4], [0, 0, 8, 8]]])
    drawn = mosaic(patches, boxes, (8, 8))[..., 0]
    assert drawn[1].tolist() == [210, 210, 220, 220, 220, 220, 120, 120]
    assert (drawn[4:] == 120).all()


def test_boxes_between_pixels_take_the_pixels_whose_centers_they_hold() -> None:
    white = np.full((1, 1, 1, 3, 3), 255, np.uint8)
    drawn = mosaic(white, np.array([[[1.6, 0.4, 4.5, 2.5]]]), (4, 6))[..., 0] == 255
    assert np.argwhere(drawn).tolist() == [[y, x] for y in (0, 1) for x in (2, 3)]


def test_what_lies_outside_leaves_no_trace() -> None:
    white = np.full((2, 1, 3, 2, 2), 255, np.uint8)
    boxes = np.array([[[-90.0, 0, -80, 10]], [[0.0, 400, 10, 410]]])
    assert (mosaic(white, boxes, (9, 9)) < 60).all()


def test_gray_is_gray_in_all_channels_and_colors_keep_theirs() -> None:
    assert patch_tile(np.full((1, 2, 2), 7, np.uint8), 9).tolist() == [[[7, 7, 7]] * 9] * 9
    one = np.array([[[1]], [[2]], [[3]]], np.uint8)
    assert colored(one).tolist() == [[[1, 2, 3]]]


def test_a_mosaic_looks_as_it_did(golden: Callable[[str, np.ndarray], None]) -> None:
    y, x = np.mgrid[:60, :90]
    waves = 128 + 100 * np.sin(x / 6) * np.cos(y / 9)
    image = np.stack([waves, 255 - waves, 2.5 * x]).clip(0, 255).astype(np.uint8)
    patches, boxes = looked(image, [(-0.7, -0.5), (0.1, 0.2), (0.9, -0.2)], glimpse=8, scales=3)
    golden("scan_mosaic", mosaic(patches, boxes, (60, 90)))
