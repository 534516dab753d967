"""Products count as operations of a model where all of their factors depend on the image."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from visattn.recording.operations import model_operations

SIDE = torch.arange(2.0, 27.0).view(5, 5)
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda a, b: a * b,
    "mm": lambda a, b: a[0, 0] @ b[0, 0],
    "bmm": lambda a, b: torch.bmm(a[0], b[0]),
}


class Function(nn.Module):
    """A function of features as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).view_as(x)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_a_constant_are_linear(name: str) -> None:
    product = PRODUCTS[name]
    model = nn.Conv2d(1, 1, 1)
    constant = SIDE.expand(1, 1, 5, 5)
    cases: list[tuple[Callable[[Tensor], Tensor], tuple[str, ...]]] = [
        (lambda x: product(x, model(x)), ("product",)),
        (lambda x: product(x, constant), ()),
        (lambda x: product(constant, x), ()),
    ]
    for function, expected in cases:
        whole = nn.Sequential(model, Function(function), model)
        assert model_operations(whole, whole, (5, 5), 1).not_rectifiers == expected
