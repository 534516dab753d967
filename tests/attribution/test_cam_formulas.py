"""Class activation maps against their equations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from visattn.attribution.cam import (
    eigen_cam,
    grad_cam,
    grad_cam_plus_plus,
    hires_cam,
    layer_cam,
    x_grad_cam,
)
from visattn.attribution.channel_cam import channel_masks

B, C, Y, X = 2, 3, 5, 7


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    activations, gradients = torch.randn(2, B, C, Y, X, generator=random, dtype=torch.float64)
    return activations.relu(), gradients * (gradients.abs() > 0.2)


def by_equation(weigh: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the map with weights `weigh(activations, gradients)` per channel."""
    activations, gradients = drawn()
    heatmap = torch.zeros(B, Y, X, dtype=torch.float64)
    for b in range(B):
        for c in range(C):
            heatmap[b] += weigh(activations[b, c], gradients[b, c]) * activations[b, c]
    return heatmap.clamp(min=0)


def equation_19(channel: Tensor, gradient: Tensor) -> Tensor:
    """Return the weight as published: alpha = g² / (2 g² + sum(A) g³), and 0 where g is."""
    weight = torch.zeros((), dtype=torch.float64)
    for g in gradient.flatten():
        if g != 0:
            weight += g**2 / (2 * g**2 + channel.sum() * g**3) * g.clamp(min=0)
    return weight


def test_methods_match_their_equations() -> None:
    torch.testing.assert_close(grad_cam(*drawn()), by_equation(lambda _, g: g.mean()))
    torch.testing.assert_close(grad_cam_plus_plus(*drawn()), by_equation(equation_19))
    torch.testing.assert_close(layer_cam(*drawn()), by_equation(lambda _, g: g.clamp(min=0)))


def test_grad_cam_plus_plus_is_finite_for_negative_channels() -> None:
    activations = torch.tensor([[[[-3.0, 1.0]]]])  # 2 + S g = 0
    result = grad_cam_plus_plus(activations, torch.tensor([[[[1.0, 1.0]]]]))
    assert result.tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize("method", [grad_cam, grad_cam_plus_plus, layer_cam])
def test_images_are_independent_and_half_precision_is_computed_in_float32(
    method: Callable[[Tensor, Tensor], Tensor],
) -> None:
    activations, gradients = drawn()
    whole = method(activations, gradients)
    assert whole.shape == (B, Y, X)
    assert whole.min() >= 0
    for index in range(B):
        torch.testing.assert_close(
            method(activations[index : index + 1], gradients[index : index + 1])[0], whole[index]
        )
    assert method(activations.half(), gradients.half()).dtype == torch.float32


def test_hires_cam_of_a_linear_layer_sums_to_its_score() -> None:
    activations, weights = drawn()
    score = (activations * weights).sum((1, 2, 3))
    torch.testing.assert_close(hires_cam(activations, weights, signed=True).sum((1, 2)), score)
    clipped = hires_cam(activations, weights)
    torch.testing.assert_close(clipped, (activations * weights).sum(1).clamp(min=0))


def test_x_grad_cam_equals_its_equation() -> None:
    def weigh(channel: Tensor, gradient: Tensor) -> Tensor:
        return (channel * gradient).sum() / channel.sum()

    torch.testing.assert_close(x_grad_cam(*drawn()), by_equation(weigh))
    off = torch.zeros(1, 1, 2, 3)
    assert torch.equal(x_grad_cam(off, torch.ones_like(off)), off[:, 0])


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 53, 5, 7)])
def test_eigen_cam_is_the_first_principal_component(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(4)
    activations = torch.randn(shape, generator=generator, dtype=torch.float64).relu()
    result = eigen_cam(activations)
    for row in range(2):
        table = activations[row].flatten(1).T  # positions by channels
        _, _, directions = torch.linalg.svd(table - table.mean(0))
        projection = (table - table.mean(0)) @ directions[0]
        energy = table.square().sum(1)
        if float(torch.corrcoef(torch.stack((projection, energy)))[0, 1]) < 0:
            projection = -projection
        torch.testing.assert_close(result[row].flatten(), projection.relu())
    assert torch.equal(eigen_cam(torch.ones(1, 2, 3, 5)), torch.zeros(1, 3, 5))


def test_eigen_cam_is_positive_where_one_object_is() -> None:
    generator = torch.Generator().manual_seed(5)
    activations = 0.1 * torch.rand(1, 11, 5, 7, generator=generator)
    activations[:, :, 1:3, 4:6] += torch.rand(11, generator=generator)[:, None, None]
    result = eigen_cam(activations)[0]
    assert float(result[1:3, 4:6].min()) > 3 * float(result[3:].max())


def test_channel_masks_are_normalized_for_each_channel() -> None:
    resized = torch.tensor([[[[1.0, 2.0], [3.0, 5.0]], [[-2.0, 0.0], [0.0, 2.0]]]])
    expected = torch.tensor([[[[0.0, 0.25], [0.5, 1.0]], [[0.0, 0.5], [0.5, 1.0]]]])
    torch.testing.assert_close(channel_masks(resized), expected)
    assert not channel_masks(torch.ones(1, 1, 2, 3)).any()


def test_hires_cam_is_zero_where_a_normalization_follows() -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randn(2, 11, 5, 7, generator=generator).requires_grad_()
    weights = torch.randn(11, 5, 7, generator=generator)
    normalized = torch.nn.functional.layer_norm(tokens.movedim(1, -1), (11,)).movedim(-1, 1)
    [gradients] = torch.autograd.grad((normalized * weights).sum(), [tokens])
    for dtype in (torch.float32, torch.bfloat16):
        heatmap = hires_cam(tokens.detach().to(dtype), gradients.to(dtype), signed=True)
        assert not heatmap.any()
    assert hires_cam(tokens.detach(), gradients + 0.01, signed=True).all()
