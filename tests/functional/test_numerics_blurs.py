"""Blurred images."""

import math

import pytest
import torch

from visattn.functional.numerics import gaussian_blur


def test_a_dot_becomes_a_gaussian() -> None:
    dot = torch.zeros(1, 2, 31, 37, dtype=torch.float64)
    dot[:, :, 15, 17] = 1.0
    weights = [math.exp(-0.5 * (step / 1.7) ** 2) for step in range(-6, 7)]
    expected = math.exp(-0.5 * (9 + 4) / 1.7**2) / sum(weights) ** 2
    assert gaussian_blur(dot, 1.7)[0, 1, 18, 15].item() == pytest.approx(expected, abs=1e-12)


def test_nothing_leaves_the_range_and_an_even_image_stays() -> None:
    images = torch.rand(2, 3, 11, 13)
    blurred = gaussian_blur(images, 5.0)
    assert images.min() < blurred.min() < blurred.max() < images.max()
    even = torch.full((1, 3, 5, 7), 0.25)
    assert torch.allclose(gaussian_blur(even, 9.0), even)


def test_sigma_is_above_0() -> None:
    with pytest.raises(ValueError, match="above 0 pixels, got 0"):
        gaussian_blur(torch.zeros(1, 1, 3, 3), 0)
