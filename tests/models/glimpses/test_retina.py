"""Glimpses against padding, cropping and average pooling."""

import itertools
import math

import pytest
import torch
from random_numbers import uniform
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from visattn.models.glimpses.retina import Retina

EDGES = list(itertools.product([-1.0, -0.3, 0.0, 1.0], repeat=2))


def retina(glimpse: int, scales: int, around: float = 0.0, channels: int = 1) -> Retina:
    return Retina(glimpse, scales, torch.full((channels,), around, dtype=torch.float64))


def plain(image: Tensor, place: list[float], glimpse: int, scales: int, around: float) -> Tensor:
    """A glimpse at a location: crops of the padded image, averaged."""
    margin, (height, width) = glimpse * 2**scales, image.shape[1:]
    padded = pad(image, (margin,) * 4, value=around)
    patches = []
    for scale in range(scales):
        side = glimpse * 2**scale
        left = margin + math.floor((place[0] + 1) / 2 * width - side / 2 + 0.5)
        top = margin + math.floor((place[1] + 1) / 2 * height - side / 2 + 0.5)
        patches.append(avg_pool2d(padded[:, top : top + side, left : left + side], 2**scale))
    return torch.stack(patches)


@pytest.mark.parametrize("size", [(7, 11), (13, 5), (1, 1)], ids=str)
@pytest.mark.parametrize(("glimpse", "scales"), [(1, 4), (2, 3), (3, 1), (3, 3), (8, 1)])
def test_a_glimpse_is_an_average_pooled_crop(
    size: tuple[int, int], glimpse: int, scales: int
) -> None:
    images, around = uniform(2, 2, *size), 0.25
    drawn = (uniform(5, 2, seed=1) * 2 - 1).tolist()
    places = [list(place) for place in EDGES] + drawn
    which = torch.arange(len(places)) % 2
    see = retina(glimpse, scales, around, channels=2)
    at = torch.tensor(places, dtype=torch.float64)
    patches = see(see.pyramid(images), at, which)
    for number, place in enumerate(places):
        wanted = plain(images[number % 2], place, glimpse, scales, around)
        assert torch.equal(patches[number, 0], wanted[0])
        torch.testing.assert_close(patches[number], wanted, rtol=0, atol=1e-14)


def test_gradients_flow_into_the_image_alone() -> None:
    image = uniform(1, 1, 5, 5).requires_grad_()
    at, see = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True), retina(2, 1)
    see(see.pyramid(image), at, torch.tensor([0])).sum().backward()
    assert at.grad is None
    assert image.grad is not None
    assert image.grad.sum() == 4
