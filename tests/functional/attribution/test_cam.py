"""Class activation maps against their equations, place by place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from visattn.functional.attribution.cam import grad_cam, grad_cam_plus_plus, layer_cam

B, C, Y, X = 2, 3, 5, 7


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    activations, gradients = torch.randn(2, B, C, Y, X, generator=random, dtype=torch.float64)
    return activations.relu(), gradients * (gradients.abs() > 0.2)


def by_equation(weigh: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the map whose channels `weigh` weighs, given one channel and its gradient."""
    activations, gradients = drawn()
    found = torch.zeros(B, Y, X, dtype=torch.float64)
    for b in range(B):
        for c in range(C):
            found[b] += weigh(activations[b, c], gradients[b, c]) * activations[b, c]
    return found.clamp(min=0)


def equation_19(channel: Tensor, gradient: Tensor) -> Tensor:
    """Return the weight as printed: alpha = g² / (2 g² + sum(A) g³), and 0 where g is."""
    weight = torch.zeros((), dtype=torch.float64)
    for g in gradient.flatten():
        if g != 0:
            weight += g**2 / (2 * g**2 + channel.sum() * g**3) * g.clamp(min=0)
    return weight


def test_each_is_its_equation() -> None:
    torch.testing.assert_close(grad_cam(*drawn()), by_equation(lambda _, g: g.mean()))
    torch.testing.assert_close(grad_cam_plus_plus(*drawn()), by_equation(equation_19))
    torch.testing.assert_close(layer_cam(*drawn()), by_equation(lambda _, g: g.clamp(min=0)))


def test_plus_plus_divides() -> None:
    """Two channels by hand: alpha is 1 / (2 + 3·4) and 1 / (2 + 6·1)."""
    activations = torch.tensor([[[[3.0, 0.0]], [[4.0, 2.0]]]])
    gradients = torch.tensor([[[[4.0, -1.0]], [[1.0, 0.0]]]])
    first, second = 4 / 14, 1 / 8
    torch.testing.assert_close(
        grad_cam_plus_plus(activations, gradients),
        torch.tensor([[[3 * first + 4 * second, 2 * second]]]),
    )


def test_plus_plus_stays_finite_where_channels_are_negative() -> None:
    activations = torch.tensor([[[[-3.0, 1.0]]]])  # 2 + S g = 0
    found = grad_cam_plus_plus(activations, torch.tensor([[[[1.0, 1.0]]]]))
    assert found.tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize("method", [grad_cam, grad_cam_plus_plus, layer_cam])
def test_images_do_not_see_each_other_and_halves_are_widened(
    method: Callable[[Tensor, Tensor], Tensor],
) -> None:
    activations, gradients = drawn()
    whole = method(activations, gradients)
    assert whole.shape == (B, Y, X)
    assert whole.min() >= 0
    for one in range(B):
        torch.testing.assert_close(
            method(activations[one : one + 1], gradients[one : one + 1])[0], whole[one]
        )
    assert method(activations.half(), gradients.half()).dtype == torch.float32
