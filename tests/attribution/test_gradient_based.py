"""Gradients of pixels against differences, integrals against what they must sum to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_subjects import images, linear_subject, small_cnn
from torch import Tensor, nn

from visattn.attribution.gradient_based import input_gradient, integrated_gradients, smoothgrad
from visattn.attribution.targets import target_of


def test_the_jacobian_is_that_of_differences() -> None:
    subject, x = small_cnn(), images()
    found = input_gradient(subject, x, target_of([2, 0], subject), signed=True)
    model, step = subject.model.eval(), 1e-5
    with torch.no_grad():
        for row, number, y, place in ((0, 2, 3, 5), (1, 0, 12, 16), (1, 0, 0, 0)):
            total = 0.0
            for color in range(3):
                for sign in (1, -1):
                    moved = x[row : row + 1].clone()
                    moved[0, color, y, place] += sign * step
                    total += sign * float(model(moved)[0, number]) / (2 * step)
            assert float(found[row, y, place]) == pytest.approx(total, abs=1e-6)


def test_of_a_linear_model_all_three_are_its_weights() -> None:
    weights = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    subject, x = linear_subject(weights), torch.randn(2, 3, 5, 7, dtype=torch.float64)
    target = target_of([3, 1], subject)
    largest, summed = weights[[3, 1]].abs().amax(1), (weights[[3, 1]] * x).sum(1)
    torch.testing.assert_close(input_gradient(subject, x, target), largest)
    torch.testing.assert_close(smoothgrad(subject, x, target, samples=3), largest)
    torch.testing.assert_close(integrated_gradients(subject, x, target, steps=1), summed)
    black = integrated_gradients(subject, x, target, steps=1, fill="black")
    torch.testing.assert_close(black, (weights[[3, 1]] * (x + 2)).sum(1))


def test_integrated_gradients_are_complete() -> None:
    subject, x = small_cnn(), images()
    subject.model[3] = nn.GELU()  # pyright: ignore[reportIndexIssue]  # smooth, so that few steps do
    found = integrated_gradients(subject, x, target_of(1, subject), steps=50)
    with torch.no_grad():
        model = subject.model.eval()
        expected = (model(x) - model(torch.zeros_like(x)))[:, 1]
    torch.testing.assert_close(found.sum((1, 2)), expected, atol=1e-8, rtol=0)


def test_smoothgrad_without_noise_is_the_gradient_and_with_it_the_mean() -> None:
    subject, x = small_cnn(), images()
    plain = input_gradient(subject, x, target_of(1, subject))
    still = smoothgrad(subject, x, target_of(1, subject), samples=2, noise=0)
    torch.testing.assert_close(still, plain)
    drawn = torch.Generator().manual_seed(5)
    total = torch.zeros_like(x)
    for _ in range(3):
        off = torch.randn(3, 13, 17, generator=drawn).double()
        for row in range(2):
            span = x[row].max() - x[row].min()
            noisy = (x[row : row + 1] + 0.2 * span * off).requires_grad_()
            total[row] += torch.autograd.grad(subject.model.eval()(noisy)[0, 1], noisy)[0][0] / 3
    found = smoothgrad(subject, x, target_of(1, subject), samples=3, noise=0.2, seed=5, signed=True)
    torch.testing.assert_close(found, total.sum(1))


@pytest.mark.parametrize(
    ("method", "options"),
    [(input_gradient, {}), (smoothgrad, {"samples": 5}), (integrated_gradients, {"steps": 5})],
)
def test_images_do_not_see_each_other_nor_how_many_go_at_once(
    method: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    subject, x = small_cnn(), images(3)
    before = torch.get_rng_state()
    found = method(subject, x, target_of(None, subject), **options)
    assert torch.equal(torch.get_rng_state(), before)
    if options:
        again = method(subject, x, target_of(None, subject), chunk=7, **options)
        torch.testing.assert_close(again, found)
    for row in range(3):
        alone = method(subject, x[row : row + 1], target_of(None, subject), **options)
        torch.testing.assert_close(alone[0], found[row])
    assert all(weight.grad is None for weight in subject.model.parameters())


def test_numbers_out_of_range_and_targets_without_gradient_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, x = small_cnn(), images()
    target = target_of(0, subject)
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as in daily use
    with pytest.raises(ValueError, match="samples must be at least 1"):
        smoothgrad(subject, x, target, samples=0)
    with pytest.raises(ValueError, match="got chunk=0"):
        smoothgrad(subject, x, target, chunk=0)
    with pytest.raises(ValueError, match="at least 1 place, got 0"):
        integrated_gradients(subject, x, target, steps=0)
    with pytest.raises(ValueError, match="mean, black, white, got 'gray'"):
        integrated_gradients(subject, x, target, fill="gray")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="has no gradient with respect to the images"):
        input_gradient(subject, x, lambda scores: scores.detach()[:, 0])
