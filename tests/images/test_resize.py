"""Resizing to the network's input: the pixels of torchvision, and exact geometry."""

from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from image_zoo import TURNS
from PIL import Image
from random_numbers import photo
from torch.nn.functional import avg_pool2d
from torchvision.transforms import v2

from visattn.images.reader import LoadedImage, read_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.attention_map import AttentionMap

SIDES = st.integers(3, 97)


@given(y=SIDES, x=SIDES, size=st.tuples(SIDES, SIDES), shorter=SIDES)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_and_squash_equal_torchvision_exactly(
    interpolation: Literal["bilinear", "bicubic"], y: int, x: int, size: tuple[int, int],
    shorter: int,
) -> None:  # fmt: skip
    image, mode = LoadedImage(photo(y, x, 3)), v2.InterpolationMode(interpolation)
    crop = ResizeSpec(size, shorter=shorter, interpolation=interpolation)
    squash = ResizeSpec(size, "squash", interpolation=interpolation)
    for spec, steps in (
        (crop, [v2.Resize(shorter, mode), v2.CenterCrop(size)]), (squash, [v2.Resize(size, mode)])
    ):  # fmt: skip
        pixels, geometry = resize_to_input(image, spec)
        peer = v2.Compose([*steps, v2.PILToTensor()])(Image.fromarray(image.pixels))
        torch.testing.assert_close(pixels, peer, rtol=0, atol=0)
        assert spec is crop or geometry.region == pytest.approx((0, 0, x, y))


@given(y=SIDES, x=SIDES, height=SIDES, width=SIDES)
def test_pad_shows_the_whole_image_between_bars(y: int, x: int, height: int, width: int) -> None:
    white = LoadedImage(np.full((y, x, 3), 255, np.uint8))
    pixels, geometry = resize_to_input(white, ResizeSpec((height, width), "pad", fill=(9, 8, 7)))
    assert pixels.shape == (3, height, width)
    assert geometry.region == (0, 0, x, y)
    corners = geometry.to_input(torch.tensor([[0.0, 0.0], [x, y]], dtype=torch.float64))
    left, top, right, bottom = corners.round().long().flatten().tolist()
    inside = torch.zeros(height, width, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert (pixels[:, inside] == 255).all()
    assert (pixels[:, ~inside] == torch.tensor([9, 8, 7])[:, None]).all()
    assert right - left == width or bottom - top == height


@pytest.mark.parametrize("size", [(1, 200), (200, 1)])
def test_a_strip_keeps_a_line_of_pixels(size: tuple[int, int]) -> None:
    strip = LoadedImage(np.full((*size, 3), 255, np.uint8))
    pixels, _ = resize_to_input(strip, ResizeSpec((8, 8), "pad", fill=(0, 0, 0)))
    assert (pixels[0] == 255).sum() == 8


FITS: list[dict[str, Any]] = [
    {"mode": "crop"},
    {"mode": "crop", "shorter": 256},
    {"mode": "squash"},
    {"mode": "pad"},
]
CASES = [
    *product([(333, 517)], range(1, 9), FITS, [False, True]),
    *product([(480, 640), (640, 480), (1080, 1920)], [1], FITS, [False, True]),
    *product([(480, 640)], [6], FITS, [False]),
]


@pytest.mark.parametrize(("size", "code", "mode", "flip"), CASES)
def test_geometry_locates_a_marked_block(
    size: tuple[int, int], code: int, mode: dict[str, Any], *, flip: bool
) -> None:
    # file -> upright -> frame -> flip -> a model whose map is the mean of each patch -> image
    (y, x), (height, width) = size, (size[0] // 5, size[1] // 5)
    top, left = int(y * 0.36), int(x * 0.44)
    upright = np.zeros((y, x, 3), np.uint8)
    upright[top : top + height, left : left + width] = 255
    stored = Image.fromarray(upright)
    stored = stored if code == 1 else stored.transpose(TURNS[code])
    stored.getexif()[0x0112] = code
    pixels, geometry = resize_to_input(read_image(stored), ResizeSpec((224, 224), **mode))
    if flip:
        pixels, geometry = pixels.flip(-1), geometry.flipped()
    patches = avg_pool2d(pixels[:1].double(), 2)[
        0
    ]  # small patches: a mean moves mass to the center of a patch
    placed = AttentionMap(patches, "patches", "gate", geometry).resize_to_image().nan_to_num()
    mass = placed / placed.sum()
    center_y = (mass.sum(1) * (torch.arange(y) + 0.5)).sum().item()
    center_x = (mass.sum(0) * (torch.arange(x) + 0.5)).sum().item()
    assert placed.shape == (y, x)
    assert abs(center_y - (top + height / 2)) < 0.1
    assert abs(center_x - (left + width / 2)) < 0.1


def test_other_modes_are_refused() -> None:
    wrong: Any
    for wrong in ({"mode": "sqash"}, {"interpolation": "nearest"}):
        with pytest.raises((ValueError, TypeError), match="mode must be|Expected type: .*Literal"):
            ResizeSpec((5, 5), **wrong)
