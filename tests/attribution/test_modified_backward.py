"""Guided backpropagation by hand; the parts of FullGrad sum to the score."""

import pytest
import timm
import torch
from small_models import images, linear_model
from torch import Tensor, nn

from visattn.attribution.explained_model import analyze_model
from visattn.attribution.gradient_based import input_x_gradient
from visattn.attribution.methods import METHODS, supported_methods, unsupported_reason
from visattn.attribution.modified_backward import fullgrad, guided_backprop
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import ExplainedModel, ModelInfo


def network(activation: nn.Module) -> ExplainedModel:
    torch.manual_seed(2)
    norm = nn.BatchNorm2d(5)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3, padding=1),
        norm,
        activation,
        nn.MaxPool2d(2),
        nn.Conv2d(5, 7, 3, padding=1),
        activation,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(7, 4),
    ).double()
    with torch.no_grad():
        for values in (norm.running_mean, norm.bias):
            assert values is not None
            values.normal_()
        for values in (norm.running_var, norm.weight):
            assert values is not None
            values.uniform_(0.5, 2)
    info = ModelInfo("net", "other", (13, 17), (0.5,) * 3, (0.25,) * 3, "none")
    return ExplainedModel(model, info, model)


def test_input_x_gradient_of_a_linear_model_is_its_terms() -> None:
    weights = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    explained, x = linear_model(weights), torch.randn(2, 3, 5, 7, dtype=torch.float64)
    result = input_x_gradient(explained, x, resolve_target([3, 1], explained))
    torch.testing.assert_close(result, (weights[[3, 1]] * x).sum(1))
    largest = input_x_gradient(explained, x, resolve_target([3, 1], explained), signed=False)
    torch.testing.assert_close(largest, (weights[[3, 1]] * x).abs().amax(1))


@pytest.mark.parametrize("inplace", [False, True])
def test_guided_backpropagation_keeps_positive_gradients_of_active_units(inplace: bool) -> None:
    first, last = nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0], [-1.0, -1.0]]))
        last.weight.copy_(torch.tensor([[2.0, -4.0, 8.0]]))
    model = nn.Sequential(nn.Flatten(), first, nn.ReLU(inplace=inplace), last)
    info = ModelInfo("net", "other", (1, 2), (0.5,), (0.5,), "none")
    explained = ExplainedModel(model, info, model)
    x = torch.tensor([[[[1.0, 1.0]]]])  # units 3, 2 and -2: the third is off, the second negative
    result = guided_backprop(explained, x, lambda scores: scores[:, 0], signed=True)
    torch.testing.assert_close(result, torch.tensor([[[2.0, 4.0]]]))


def test_functional_activations_are_guided_too() -> None:
    class Functional(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: Tensor) -> Tensor:
            if self.name == "method":
                return x.relu()
            return getattr(nn.functional, self.name)(x)

    x = images()
    expected = guided_backprop(network(nn.ReLU()), x, lambda scores: scores[:, 2])
    for name in ("relu", "method"):
        result = guided_backprop(network(Functional(name)), x, lambda scores: scores[:, 2])
        torch.testing.assert_close(result, expected)
    with pytest.raises(ValueError, match="changes the gradient of ReLUs, but net computes none"):
        guided_backprop(network(nn.GELU()), x, lambda scores: scores[:, 2])


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.GELU(), nn.SiLU(inplace=True)]
)
def test_the_parts_of_fullgrad_sum_to_the_score(activation: nn.Module) -> None:
    explained, x = network(activation), images()
    result = fullgrad(explained, x, resolve_target([2, 0], explained))  # else it raises
    assert result.shape == (2, 13, 17)
    assert bool((result >= 0).all())
    for row, class_index in enumerate((2, 0)):
        single = fullgrad(explained, x[row : row + 1], resolve_target(class_index, explained))
        torch.testing.assert_close(single[0], result[row])


def test_fullgrad_of_a_convolution_is_the_sum_of_two_maps() -> None:
    convolution, last = nn.Conv2d(1, 2, 1), nn.Linear(6, 1, bias=False)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), last)
    info = ModelInfo("net", "other", (1, 3), (0.5,), (0.5,), "none")
    explained, x = ExplainedModel(model, info, model), torch.tensor([[[[-1.0, 1.0, 4.0]]]])
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
        for bias in (convolution.bias,):
            assert bias is not None
            bias.copy_(torch.tensor([0.0, 4.0]))
        last.weight.copy_(torch.tensor([[1.0, 2.0, 1.0, 1.0, 3.0, 0.5]]))
    # gradients behind the convolution: 0 2 1 and 1 3 0.5; of the image: 2 8 2
    bias = torch.tensor([[4.0, 12.0, 2.0]]) / 12
    pixels = (torch.tensor([[2.0, 8.0, 8.0]]) - 2) / 6
    result = fullgrad(explained, x, resolve_target(0, explained))
    torch.testing.assert_close(result, (bias + pixels)[None])


def test_a_model_with_products_is_refused() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.mean((2, 3), keepdim=True).sigmoid()

    explained = network(Gate())
    with pytest.raises(ValueError, match="must sum to the score, but for net they sum to"):
        fullgrad(explained, images(), resolve_target(1, explained))


def test_methods_that_fit_follow_from_the_operations_of_a_model() -> None:
    resnet = analyze_model(timm.create_model("test_resnet").eval()).info
    vit = analyze_model(timm.create_model("test_vit").eval()).info
    assert {"guided_backprop", "fullgrad", "scorecam"} <= set(supported_methods(resnet))
    assert not {"guided_backprop", "fullgrad"} & set(supported_methods(vit))
    assert "it computes gelu" in unsupported_reason(METHODS["guided_backprop"], vit)
    assert "features of both signs" in unsupported_reason(METHODS["xgradcam"], vit)
    assert "but computes layer_norm" in unsupported_reason(METHODS["fullgrad"], vit)
