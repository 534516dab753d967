"""Promotion of half precision, means, maxima and Gaussian blur."""

import math

import pytest
import torch
from random_numbers import numbers

from visattn.functional.numerics import (
    fast_amax,
    fast_mean,
    gaussian_blur,
    without_autocast,
)


def test_products_stay_in_float32_under_autocast() -> None:
    ones, meta = torch.ones(1, 1), torch.ones(1, 1, device="meta")
    with torch.autocast("cpu", torch.bfloat16):
        with without_autocast(ones.device):
            assert (ones @ ones).dtype == torch.float32
        assert (ones @ ones).dtype == torch.bfloat16
    with without_autocast(meta.device):  # a device without autocast
        assert (meta @ meta).shape == (1, 1)


@pytest.mark.parametrize("dims", [(1,), (2,), (3,), (2, 3)])
def test_means_and_maxima_match_torch_with_their_gradients(dims: tuple[int, ...]) -> None:
    x = numbers(2, 3, 5, 7).requires_grad_()
    ours, theirs = [fast_mean(x, dims)], [x.mean(dims)]
    if len(dims) == 1:
        ours.append(fast_amax(x, dims[0]))
        theirs.append(x.amax(dims[0]))
        assert torch.equal(fast_amax(x.detach(), dims[0]), ours[1])
    for got, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)
        slopes = [torch.autograd.grad(y, x, torch.ones_like(y))[0] for y in (got, wanted)]
        torch.testing.assert_close(*slopes, rtol=0, atol=1e-14)


def test_one_of_equal_maxima_takes_the_gradient() -> None:
    x = torch.zeros(1, 1, 3, 5, requires_grad=True)
    [gradient] = torch.autograd.grad(fast_amax(x, 3).sum(), x)
    assert gradient.sum(3).tolist() == [[[1.0, 1.0, 1.0]]]
    assert set(gradient.unique().tolist()) == {0.0, 1.0}


def test_means_of_half_precision_do_not_overflow() -> None:
    for kind in (torch.float16, torch.bfloat16):
        x = 1e4 * (1 + torch.rand(2, 3, 32, 33)).to(kind)
        exact = x.double().mean((2, 3))
        torch.testing.assert_close(fast_mean(x, (2, 3)).double(), exact, rtol=4e-3, atol=0)


def test_blur_is_a_gaussian_that_keeps_constants() -> None:
    dot = torch.zeros(1, 2, 31, 37, dtype=torch.float64)
    dot[:, :, 15, 17] = 1.0
    weights = [math.exp(-0.5 * (step / 1.7) ** 2) for step in range(-6, 7)]
    expected = math.exp(-0.5 * (9 + 4) / 1.7**2) / sum(weights) ** 2
    assert gaussian_blur(dot, 1.7)[0, 1, 18, 15].item() == pytest.approx(expected, abs=1e-12)
    even = torch.full((1, 3, 5, 7), 0.25)
    assert torch.allclose(gaussian_blur(even, 9.0), even)
    with pytest.raises(ValueError, match="above 0 pixels, got 0"):
        gaussian_blur(even, 0)
