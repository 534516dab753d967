"""Promotion of half precision, Gaussian blur and Gauss-Legendre quadrature."""

import math

import numpy as np
import pytest
import torch

from visattn.functional.numerics import (
    at_least_float32,
    gauss_legendre,
    gaussian_blur,
    without_autocast,
)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_only_half_precision_is_promoted(dtype: torch.dtype, expected: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    assert at_least_float32(x).dtype == expected
    assert (at_least_float32(x) is x) == (dtype == expected)


def test_products_stay_in_float32_under_autocast() -> None:
    ones = torch.ones(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (ones @ ones).dtype == torch.bfloat16
        with without_autocast(ones.device):
            assert (ones @ ones).dtype == torch.float32
        assert (ones @ ones).dtype == torch.bfloat16


def test_devices_without_autocast_are_unchanged() -> None:
    ones = torch.ones(1, 1, device="meta")
    with without_autocast(ones.device):
        assert (ones @ ones).shape == (1, 1)


def test_impulse_becomes_a_gaussian() -> None:
    dot = torch.zeros(1, 2, 31, 37, dtype=torch.float64)
    dot[:, :, 15, 17] = 1.0
    weights = [math.exp(-0.5 * (step / 1.7) ** 2) for step in range(-6, 7)]
    expected = math.exp(-0.5 * (9 + 4) / 1.7**2) / sum(weights) ** 2
    assert gaussian_blur(dot, 1.7)[0, 1, 18, 15].item() == pytest.approx(expected, abs=1e-12)


def test_blur_stays_in_range_and_keeps_constants() -> None:
    images = torch.rand(2, 3, 11, 13)
    blurred = gaussian_blur(images, 5.0)
    assert images.min() < blurred.min() < blurred.max() < images.max()
    even = torch.full((1, 3, 5, 7), 0.25)
    assert torch.allclose(gaussian_blur(even, 9.0), even)


def test_sigma_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0 pixels, got 0"):
        gaussian_blur(torch.zeros(1, 1, 3, 3), 0)


@pytest.mark.parametrize("count", [1, 2, 5, 16, 50])
def test_nodes_and_weights_match_numpy(count: int) -> None:
    places, weights = np.polynomial.legendre.leggauss(count)
    result = gauss_legendre(count)
    np.testing.assert_allclose(result[0].numpy(), (places + 1) / 2, atol=1e-14)
    np.testing.assert_allclose(result[1].numpy(), weights / 2, atol=1e-14)


def test_number_of_nodes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        gauss_legendre(0)
