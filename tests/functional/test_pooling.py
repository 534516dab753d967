"""Means, maxima, norms and standard deviations against loops and torch."""

import pytest
import torch
from random_numbers import numbers

from visattn.functional.numerics import (
    channel_means,
    channel_norms,
    channel_stds,
    fast_amax,
    fast_mean,
)


@pytest.mark.parametrize("over", [(1,), (2,), (3,), (2, 3)])
def test_mean_and_its_gradient_match_torch(over: tuple[int, ...]) -> None:
    x = numbers(2, 3, 5, 7).requires_grad_()
    got, wanted = fast_mean(x, over), x.mean(over)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-14)
    grad_output = numbers(*got.shape, seed=1)
    [ours] = torch.autograd.grad(got, x, grad_output)
    [theirs] = torch.autograd.grad(wanted, x, grad_output)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_maxima_agree_with_and_without_gradients(axis: int) -> None:
    x = numbers(2, 3, 5, 7)
    wanted = x.movedim(axis, 0)
    largest = wanted[0]
    for layer in wanted:
        largest = torch.where(layer > largest, layer, largest)
    assert torch.equal(fast_amax(x, axis), largest)
    learning = x.clone().requires_grad_()
    got = fast_amax(learning, axis)
    assert torch.equal(got, largest)
    got.sum().backward()
    assert learning.grad is not None
    assert torch.equal(learning.grad, (x == largest.unsqueeze(axis)).double())


def test_one_of_equal_maxima_takes_the_gradient() -> None:
    x = torch.zeros(1, 1, 3, 5, requires_grad=True)
    fast_amax(x, 3).sum().backward()
    assert x.grad is not None
    assert x.grad.sum(3).tolist() == [[[1.0, 1.0, 1.0]]]
    assert set(x.grad.unique().tolist()) == {0.0, 1.0}


def test_channel_std_and_norm_match_a_loop() -> None:
    x = numbers(2, 3, 5, 7)
    for b in range(2):
        for c in range(3):
            places = x[b, c].flatten().tolist()
            mean = sum(places) / 35
            wanted = (sum((place - mean) ** 2 for place in places) / 35 + 1e-5) ** 0.5
            assert float(channel_stds(x)[b, c]) == pytest.approx(wanted, abs=1e-12)
            assert float(channel_norms(x)[b, c]) == pytest.approx(
                sum(place**2 for place in places) ** 0.5, abs=1e-12
            )


def test_constant_maps_have_finite_gradients() -> None:
    x = torch.full((2, 3, 1, 1), 4.0, requires_grad=True)
    (channel_stds(x).sum() + channel_norms(x - x).sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == torch.zeros(2, 3, 1, 1).tolist()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_overflow(kind: torch.dtype) -> None:
    x = 1e4 * (1 + torch.rand(2, 3, 32, 33)).to(kind)
    exact = x.double()
    torch.testing.assert_close(channel_means(x).double(), exact.mean((2, 3)), rtol=4e-3, atol=0)
    torch.testing.assert_close(
        channel_stds(x).double(), exact.std((2, 3), correction=0), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        channel_norms(x).double(), exact.square().sum((2, 3)).sqrt(), rtol=1e-5, atol=0
    )


def test_gradients() -> None:
    x = numbers(2, 3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(channel_stds, x)
    assert torch.autograd.gradcheck(channel_norms, x)
    assert torch.autograd.gradgradcheck(channel_stds, x)
