"""The parts of FullGrad sum to the score; gradient × input of a linear model."""

import torch
from small_models import images
from torch import Tensor, nn

from visattn.attribution.gradient import fullgrad
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import resolve_target
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject


def network(activation: nn.Module) -> Subject:
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
    return Subject(model, info, model)


def test_a_model_whose_parts_sum_to_the_score_is_mapped_and_one_with_products_is_refused() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.mean((2, 3), keepdim=True).sigmoid()

    for activation in (
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.ReLU6(),
        nn.GELU(),
        nn.SiLU(inplace=True),
    ):
        subject = network(activation)
        assert METHODS["fullgrad"].check(subject, None) == ""
        assert bool((fullgrad(subject, images(), resolve_target([2, 0], subject)) >= 0).all())
    reason = METHODS["fullgrad"].check(network(Gate()), None)
    assert reason.endswith("gradients times input and biases do not sum to its output")


def test_fullgrad_of_a_convolution_is_the_sum_of_two_maps() -> None:
    convolution, last = nn.Conv2d(1, 2, 1), nn.Linear(6, 1, bias=False)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), last)
    info = ModelInfo("net", "other", (1, 3), (0.5,), (0.5,), "none")
    subject, x = Subject(model, info, model), torch.tensor([[[[-1.0, 1.0, 4.0]]]])
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
        for bias in (convolution.bias,):
            assert bias is not None
            bias.copy_(torch.tensor([0.0, 4.0]))
        last.weight.copy_(torch.tensor([[1.0, 2.0, 1.0, 1.0, 3.0, 0.5]]))
    # gradients behind the convolution: 0 2 1 and 1 3 0.5; of the image: 2 8 2
    bias = torch.tensor([[4.0, 12.0, 2.0]]) / 12
    pixels = (torch.tensor([[2.0, 8.0, 8.0]]) - 2) / 6
    result = fullgrad(subject, x, resolve_target(0, subject))
    torch.testing.assert_close(result, (bias + pixels)[None])


def test_fullgrad_lays_biases_where_the_cells_of_a_network_without_padding_lie() -> None:
    convolution = nn.Conv2d(1, 1, 5)
    head = nn.Linear(5 * 7, 1, bias=False)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), head)
    with torch.no_grad():
        for values in model.parameters():
            values.zero_()
        convolution.weight[0, 0, 2, 2] = convolution.bias[0] = 1  # pyright: ignore[reportOptionalSubscript]
        head.weight[0, 7 + 4] = 1  # row 1, column 4 of 5 x 7 cells
    info = ModelInfo("net", "other", (9, 11), (0.5,), (0.5,), "none")
    subject, x = Subject(model, info, model), torch.ones(1, 1, 9, 11)
    [result] = fullgrad(subject, x, resolve_target(0, subject))
    expected = torch.zeros(9, 11)
    expected[1 + 2, 4 + 2] = 2  # bias and pixel
    torch.testing.assert_close(result, expected)
