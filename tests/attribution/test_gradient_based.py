"""Input gradients against finite differences, Integrated Gradients against completeness."""

from functools import partial
from typing import Any

import pytest
import torch
from small_models import images, linear_model, small_cnn
from torch import Tensor, nn

from visattn.attribution.gradient import (
    input_gradient,
    input_x_gradient,
    integrated_gradients,
    smoothgrad,
)
from visattn.attribution.perturbation import occlusion
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject


@pytest.mark.parametrize("channels", [1, 3])
def test_attributions_of_a_linear_model_are_its_weights_or_terms(channels: int) -> None:
    weights = torch.randn(4, channels, 5, 7, dtype=torch.float64)
    subject, x = linear_model(weights), torch.randn(2, channels, 5, 7, dtype=torch.float64)
    target, chosen = resolve_target([3, 1], subject), weights[[3, 1]]
    largest, summed = chosen.abs().amax(1), (chosen * x).sum(1)
    cases: list[tuple[Any, dict[str, Any], Tensor]] = [
        (input_gradient, {}, largest),
        (smoothgrad, {"num_samples": 3}, largest),
        (input_x_gradient, {}, summed),
        (input_x_gradient, {"signed": False}, (chosen * x).abs().amax(1)),
        (integrated_gradients, {"n_steps": 1}, summed),
        (integrated_gradients, {"n_steps": 1, "baselines": "black"}, (chosen * (x + 2)).sum(1)),
    ]
    for method, options, expected in cases:
        torch.testing.assert_close(method(subject, x, target, **options), expected)
    occluded = occlusion(subject, x, lambda out: out[[0, 1], [3, 1]], sliding_window_size=1)
    torch.testing.assert_close(occluded, summed)


def test_integrated_gradients_satisfy_completeness() -> None:
    subject, x = small_cnn(), images()
    subject.model[3] = nn.GELU()  # pyright: ignore[reportIndexIssue]  # smooth, so that few steps suffice
    result = integrated_gradients(subject, x, resolve_target(1, subject), n_steps=50)
    with torch.no_grad():
        model = subject.model.eval()
        expected = (model(x) - model(torch.zeros_like(x)))[:, 1]
    torch.testing.assert_close(result.sum((1, 2)), expected, atol=1e-8, rtol=0)


def test_smoothgrad_is_the_mean_gradient_over_noise() -> None:
    subject, x = small_cnn(), images()
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros_like(x)
    for _ in range(3):
        noise = torch.randn(3, 13, 17, generator=generator).double()
        for row in range(2):
            spread = x[row].max() - x[row].min()
            noisy = (x[row : row + 1] + 0.2 * spread * noise).requires_grad_()
            total[row] += torch.autograd.grad(subject.model.eval()(noisy)[0, 1], noisy)[0][0] / 3
    options: dict[str, Any] = {"num_samples": 3, "stdev_spread": 0.2, "seed": 5, "signed": True}
    result = smoothgrad(subject, x, resolve_target(1, subject), **options)
    torch.testing.assert_close(result, total.sum(1))


def test_the_size_of_images_bounds_the_batch_of_gradients() -> None:
    model = nn.Sequential(nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    info = ModelInfo("net", "other", (5, 7), (0.5,) * 3, (0.5,) * 3, "none")
    subject, sizes = Subject(model, info, model), list[int]()
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    for size, most in (((5, 7), 32), ((224, 224), 8), ((640, 640), 1)):
        for function in (integrated_gradients, partial(smoothgrad, num_samples=50)):
            sizes.clear()
            function(subject, torch.randn(1, 3, *size), resolve_target(1, subject))
            assert max(sizes) == most
