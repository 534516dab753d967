"""Guided backpropagation by hand; the parts of FullGrad sum to the score."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest
import timm
import torch
from small_models import images, linear_model
from torch import Tensor, nn

from visattn.attribution.explained_model import analyze_model
from visattn.attribution.gradient import input_x_gradient
from visattn.attribution.methods import METHODS, supported_methods
from visattn.attribution.modified_backward import fullgrad, guided_backprop
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.operations import model_operations, rectifiers_error


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
    with pytest.raises(ValueError, match="does not fit net: all of .* computes gelu; use input"):
        guided_backprop(network(nn.GELU()), x, lambda scores: scores[:, 2])
    with pytest.raises(ValueError, match="does not fit net: it computes no ReLU; use input"):
        guided_backprop(network(nn.Identity()), x, lambda scores: scores[:, 2])


class Called(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def assign_zeros(x: Tensor) -> Tensor:
    x = x.clone()
    x[x < 0] = 0
    return x


ZERO = torch.zeros((), dtype=torch.float64)
RECTIFIERS: list[Callable[[Tensor], Tensor]] = [
    torch.relu_,
    lambda x: x.relu_(),
    lambda x: x.clamp(min=0),
    lambda x: x.clamp_(min=0),
    lambda x: x.clamp_min(0),
    lambda x: torch.clamp_min_(x, 0),
    lambda x: torch.clamp(x, min=ZERO),
    lambda x: torch.clip(x, 0),
    lambda x: torch.maximum(x, ZERO),
    lambda x: torch.max(ZERO, x),
    lambda x: torch.fmax(x, ZERO),
    lambda x: nn.functional.threshold(x, 0, 0),
    lambda x: torch.threshold_(x, 0, 0),
    lambda x: torch.where(x > 0, x, 0),
    lambda x: torch.where(x < 0, 0.0, x),
    lambda x: x.where(x > 0, 0),
    lambda x: x * (x > 0),
    lambda x: (x > 0) * x,
    lambda x: x * (x > 0).to(x.dtype),
    lambda x: x.mul_(x.detach() > 0),
    lambda x: x * torch.heaviside(x.detach(), ZERO),
    lambda x: x.masked_fill(x < 0, 0),
    assign_zeros,
]
OTHERS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (torch.tanh, "tanh"),
    (torch.sigmoid, "sigmoid"),
    (lambda x: x * torch.sigmoid(x), "product, sigmoid"),
    (lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), "product, sigmoid"),
    (torch.abs, "abs"),
    (lambda x: x.relu() ** 2, "pow"),
    (lambda x: nn.functional.leaky_relu(x, 0.1), "leaky_relu"),
    (lambda x: torch.where(x > 0, x, 0.1 * x), "where"),
    (lambda x: x.clamp(-1, 1), "clamp"),
    (lambda x: x.clamp_min(0.1), "clamp"),
    (nn.Hardtanh(), "hardtanh"),
    (lambda x: nn.functional.threshold(x, 1, 0), "threshold"),
    (lambda x: nn.functional.threshold(x, 0, 20), "threshold"),
    (lambda x: torch.minimum(x, ZERO), "minimum"),
    (lambda x: torch.maximum(x, ZERO + 0.1), "maximum"),
    (lambda x: torch.maximum(x, -x), "maximum"),
    (lambda x: x * (x > 0.3), "masking"),
    (lambda x: x * nn.functional.relu6(x + 3) / 6, "product"),
    (lambda x: OwnReLU.apply(x), "OwnReLU"),
]


class OwnReLU(torch.autograd.Function):
    """Its derivative is code, of which only the name is known."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (ctx.saved_tensors[0] > 0)


def test_every_kind_of_rectifier_is_guided() -> None:
    x = images()
    plain = network(nn.ReLU())
    expected = guided_backprop(plain, x, lambda scores: scores[:, 2])
    for index, function in enumerate(RECTIFIERS):
        explained = network(Called(function))
        operations = model_operations(explained.model, explained.model, (13, 17), 3)
        assert not rectifiers_error(operations), index
        result = guided_backprop(explained, x, lambda scores: scores[:, 2])
        torch.testing.assert_close(result, expected, msg=f"rectifier {index}")


def test_other_activations_and_gates_are_refused_by_name() -> None:
    for function, names in OTHERS:
        explained = network(Called(lambda x, function=function: function(x.relu())))
        layers = cast("nn.Sequential", explained.model)
        layers[2], layers[5] = nn.ReLU(), Called(function)  # one beside it
        error = rectifiers_error(model_operations(explained.model, explained.model, (13, 17), 3))
        assert error.endswith(f"but it computes {names}"), (names, error)
        with pytest.raises(ValueError, match=f"computes {names}; use input_gradient"):
            guided_backprop(explained, images(), lambda scores: scores[:, 2])


def elementwise_functions() -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Differentiable elementwise functions of one tensor that torch has, except linear ones."""
    x, far = torch.linspace(-2, 2, 97).double(), torch.linspace(0.3, 2.3, 97).double()
    for library in (torch, nn.functional, torch.special):
        for name in sorted(dir(library)):
            builtin = type(getattr(library, name)).__name__ == "builtin_function_or_method"
            if name.startswith(("_", "norm_except")) or (library is torch and not builtin):
                continue
            function = getattr(library, name)
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y, leaf = function(x.clone()), x.clone().requires_grad_()
                same = torch.allclose(function(x.flip(0)).flip(0), y, equal_nan=True)
                alone = torch.allclose(function(x[5:6].clone()), y[5:6], equal_nan=True)
                if not (same and alone and y.dtype == x.dtype and function(leaf * 1).requires_grad):
                    continue
                zero = function(0 * x)
                odd = torch.allclose(function(far.clone()) + function(-far), 2 * zero)
                scaled = function(2 * far) - zero, 2 * (function(far.clone()) - zero)
                if not (odd and torch.allclose(*scaled)):
                    yield name, function


def test_no_elementwise_function_of_torch_is_overlooked() -> None:
    x = torch.linspace(-2, 2, 97).double()
    count = 0
    for name, function in elementwise_functions():
        model = nn.Sequential(nn.Conv2d(1, 2, 1), Called(function), nn.Conv2d(2, 1, 1)).double()
        error = rectifiers_error(model_operations(model, model, (2, 3), 1))
        rectifier = torch.equal(function(x.clone()), x.relu())
        assert bool(error) != rectifier, (name, error)
        assert rectifier or "but it computes" in error, (name, error)
        count += 1
    assert count > 90


def test_the_function_that_turns_the_last_layer_into_the_output_is_no_activation() -> None:
    for last in (nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()):
        model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4), last)
        model(torch.zeros(1, 3, 5, 7))
        operations = model_operations(model, model, (5, 7), 3)
        assert operations.not_rectifiers == ()
        hidden = nn.Sequential(model[:3], nn.Unflatten(1, (5, 3, 5)), last, nn.Conv2d(5, 2, 1))
        assert len(model_operations(hidden, hidden, (5, 7), 3).not_rectifiers) == 1


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


def test_fullgrad_lays_biases_at_the_centers_of_receptive_fields() -> None:
    convolution = nn.Conv2d(1, 1, 5)
    head = nn.Linear(5 * 7, 1, bias=False)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), head)
    with torch.no_grad():
        for values in model.parameters():
            values.zero_()
        convolution.weight[0, 0, 2, 2] = convolution.bias[0] = 1  # pyright: ignore[reportOptionalSubscript]
        head.weight[0, 7 + 4] = 1  # row 1, column 4 of 5 x 7 cells
    info = ModelInfo("net", "other", (9, 11), (0.5,), (0.5,), "none")
    explained, x = ExplainedModel(model, info, model), torch.ones(1, 1, 9, 11)
    [result] = fullgrad(explained, x, resolve_target(0, explained))
    expected = torch.zeros(9, 11)
    expected[1 + 2, 4 + 2] = 2  # bias and pixel
    torch.testing.assert_close(result, expected)


def test_a_model_with_products_is_refused() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.mean((2, 3), keepdim=True).sigmoid()

    explained = network(Gate())
    with pytest.raises(ValueError, match="must sum to the score, but for net they sum to"):
        fullgrad(explained, images(), resolve_target(1, explained))


def test_methods_that_fit_follow_from_the_operations_of_a_model() -> None:
    resnet = analyze_model(timm.create_model("test_resnet").eval())
    vit = analyze_model(timm.create_model("test_vit").eval())
    assert {"guided_backprop", "fullgrad", "scorecam"} <= set(supported_methods(resnet))
    assert not {"guided_backprop", "fullgrad"} & set(supported_methods(vit))
    assert "it computes gelu" in METHODS["guided_backprop"].supports(vit)
    assert "features of both signs" in METHODS["xgradcam"].supports(vit)
    assert "but computes layer_norm" in METHODS["fullgrad"].supports(vit)
