"""Input gradients against finite differences, Integrated Gradients against completeness."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from small_models import images, linear_model, small_cnn
from torch import Tensor, nn

from visattn.attribution.gradient import input_gradient, integrated_gradients, smoothgrad
from visattn.attribution.perturbation import images_per_pass
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject


def test_gradients_equal_finite_differences() -> None:
    explained, x = small_cnn(), images()
    result = input_gradient(explained, x, resolve_target([2, 0], explained), signed=True)
    model, step = explained.model.eval(), 1e-5
    with torch.no_grad():
        for row, class_index, y, column in ((0, 2, 3, 5), (1, 0, 12, 16), (1, 0, 0, 0)):
            total = 0.0
            for color in range(3):
                for sign in (1, -1):
                    shifted = x[row : row + 1].clone()
                    shifted[0, color, y, column] += sign * step
                    total += sign * float(model(shifted)[0, class_index]) / (2 * step)
            assert float(result[row, y, column]) == pytest.approx(total, abs=1e-6)


def test_attributions_of_a_linear_model_are_its_weights() -> None:
    weights = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    explained, x = linear_model(weights), torch.randn(2, 3, 5, 7, dtype=torch.float64)
    target = resolve_target([3, 1], explained)
    largest, summed = weights[[3, 1]].abs().amax(1), (weights[[3, 1]] * x).sum(1)
    torch.testing.assert_close(input_gradient(explained, x, target), largest)
    torch.testing.assert_close(smoothgrad(explained, x, target, num_samples=3), largest)
    torch.testing.assert_close(integrated_gradients(explained, x, target, n_steps=1), summed)
    black = integrated_gradients(explained, x, target, n_steps=1, baselines="black")
    torch.testing.assert_close(black, (weights[[3, 1]] * (x + 2)).sum(1))


def test_integrated_gradients_satisfy_completeness() -> None:
    explained, x = small_cnn(), images()
    explained.model[3] = nn.GELU()  # pyright: ignore[reportIndexIssue]  # smooth, so that few steps suffice
    result = integrated_gradients(explained, x, resolve_target(1, explained), n_steps=50)
    with torch.no_grad():
        model = explained.model.eval()
        expected = (model(x) - model(torch.zeros_like(x)))[:, 1]
    torch.testing.assert_close(result.sum((1, 2)), expected, atol=1e-8, rtol=0)


def test_smoothgrad_is_the_mean_gradient_over_noise() -> None:
    explained, x = small_cnn(), images()
    plain = input_gradient(explained, x, resolve_target(1, explained))
    noiseless = smoothgrad(
        explained, x, resolve_target(1, explained), num_samples=2, stdev_spread=0
    )
    torch.testing.assert_close(noiseless, plain)
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros_like(x)
    for _ in range(3):
        noise = torch.randn(3, 13, 17, generator=generator).double()
        for row in range(2):
            spread = x[row].max() - x[row].min()
            noisy = (x[row : row + 1] + 0.2 * spread * noise).requires_grad_()
            total[row] += torch.autograd.grad(explained.model.eval()(noisy)[0, 1], noisy)[0][0] / 3
    result = smoothgrad(
        explained,
        x,
        resolve_target(1, explained),
        num_samples=3,
        stdev_spread=0.2,
        seed=5,
        signed=True,
    )
    torch.testing.assert_close(result, total.sum(1))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (input_gradient, {}),
        (smoothgrad, {"num_samples": 5}),
        (integrated_gradients, {"n_steps": 5}),
    ],
)
def test_maps_do_not_depend_on_the_batch_or_internal_batch_size(
    method: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    explained, x = small_cnn(), images(3)
    before = torch.get_rng_state()
    result = method(explained, x, resolve_target(None, explained), **options)
    assert torch.equal(torch.get_rng_state(), before)
    if options:
        again = method(
            explained, x, resolve_target(None, explained), internal_batch_size=7, **options
        )
        torch.testing.assert_close(again, result)
    for row in range(3):
        single = method(explained, x[row : row + 1], resolve_target(None, explained), **options)
        torch.testing.assert_close(single[0], result[row])
    assert all(weight.grad is None for weight in explained.model.parameters())


def test_targets_without_gradient_are_refused() -> None:
    explained, x = small_cnn(), images()
    with pytest.raises(ValueError, match="must be differentiable with respect to the images"):
        input_gradient(explained, x, lambda scores: scores.detach()[:, 0])


def test_the_size_of_images_bounds_the_batch_of_gradients() -> None:
    model = nn.Sequential(nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    info = ModelInfo("net", "other", (5, 7), (0.5,) * 3, (0.5,) * 3, "none")
    explained, sizes = Subject(model, info, model), list[int]()
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    for size, most in (((5, 7), 32), ((224, 224), 8), ((640, 640), 1)):
        for function in (integrated_gradients, partial(smoothgrad, num_samples=50)):
            sizes.clear()
            function(explained, torch.randn(1, 3, *size), resolve_target(1, explained))
            assert max(sizes) == min(most, images_per_pass(torch.zeros(1, 3, *size)))
