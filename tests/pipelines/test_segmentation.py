"""Segmentation of photos: the marked block keeps its place through crop, padding and EXIF."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeMode
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet, UNetOutput
from visattn.pipelines.segmentation import place_segmentations, segment
from visattn.viz.figures import rgb
from visattn.viz.segmentation import segmentation_figure

BLOCK = (60, 20, 100, 70)  # left, top, right, bottom


class RedDetector(UNet):
    """Segments by color: red is class 1, green is class 2."""

    def __init__(self, size: tuple[int, int] = (48, 64)) -> None:
        super().__init__(("background", "red", "green"), SmallEncoder(size, channels=8))

    def segment(self, images: Tensor) -> UNetOutput:
        red, green, _ = images.float().unbind(1)
        logits = torch.stack([torch.full_like(red, 128.0), red, green], 1) / 10
        return UNetOutput(logits, (avg_pool2d(red / 255, 4),))


def photo(size: tuple[int, int] = (97, 131)) -> np.ndarray:
    pixels = np.zeros((*size, 3), np.uint8)
    left, top, right, bottom = BLOCK
    pixels[top:bottom, left:right, 0] = 255
    return pixels


@pytest.mark.parametrize("mode", ["pad", "squash", "crop"])
@pytest.mark.parametrize("size", [(97, 131), (131, 97), (71, 400), (200, 200)])
def test_the_marked_block_keeps_its_place(mode: ResizeMode, size: tuple[int, int]) -> None:
    if mode == "crop" and max(size) > 131:
        pytest.skip("the block is outside of the crop")
    [result] = segment(RedDetector(), photo(size), resize_mode=mode)
    assert result.labels.shape == size
    visible = result.labels != 255
    left, top, right, bottom = map(round, result.geometry.region)
    assert visible[top:bottom, left:right].all()
    assert visible.sum() == (right - left) * (bottom - top)
    box = (max(BLOCK[0], left), max(BLOCK[1], top), min(BLOCK[2], right), min(BLOCK[3], bottom))
    block, found = np.zeros(size, bool), result.labels == 1
    block[box[1] : box[3], box[0] : box[2]] = True
    assert (found & block).sum() > 0.8 * (found | block).sum()
    [gate] = result.gates
    values = gate.resize_to_image().nan_to_num(0.0)
    values = values / values.sum()
    center = (
        float(values.sum(0) @ (torch.arange(size[1]) + 0.5)),
        float(values.sum(1) @ (torch.arange(size[0]) + 0.5)),
    )
    reach = 0.05 * max(size)  # a cell of the gate is a twelfth to a sixteenth of the photo
    expected = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    assert center == (pytest.approx(expected[0], abs=reach), pytest.approx(expected[1], abs=reach))


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3)])
def test_thin_photos_are_segmented(size: tuple[int, int]) -> None:
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[..., 1] = 255
    [result] = segment(RedDetector(), pixels)
    assert (result.labels == 2).all()
    assert result.shares() == {"green": 1.0}
    assert rgb(segmentation_figure(pixels, result, pixels[..., 0])).size


def test_labels_equal_the_argmax_at_the_input_size() -> None:
    random = torch.Generator().manual_seed(1)
    output = UNetOutput(torch.randn(2, 5, 11, 7, generator=random), ())
    geometry = Geometry.identity((11, 7))
    results = list(place_segmentations(output, tuple("abcde"), [geometry] * 2))
    for row, result in enumerate(results):
        assert np.array_equal(result.labels, output.logits[row].argmax(0).numpy())
