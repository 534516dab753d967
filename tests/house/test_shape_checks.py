"""The checks of shapes are on, and as strict as they are meant to be."""

from typing import Self

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from shape_checks import checked
from torch import Tensor

from visattn.maps.evaluations import attention_correctness


class Scaled:
    @jaxtyped(typechecker=checked)
    def by(self, x: Float[Tensor, "b c"], y: Float[Tensor, "b c"], factor: float = 1) -> Self:
        self.product = factor * x * y
        return self


def test_every_function_of_visattn_is_checked() -> None:
    with pytest.raises(TypeCheckError, match="attention_correctness"):
        attention_correctness(torch.rand(2, 3, 5), torch.rand(2, 3, 7))


def test_self_may_be_said_and_the_rest_is_checked() -> None:
    assert Scaled().by(torch.rand(2, 3), torch.rand(2, 3)).product.shape == (2, 3)
    with pytest.raises(TypeCheckError, match="parameter 'y'"):
        Scaled().by(torch.rand(2, 3), torch.rand(2, 5))


def test_an_int_will_do_where_a_float_is_asked_for() -> None:
    assert Scaled().by(torch.ones(1, 1), torch.ones(1, 1), 3).product.item() == 3
    with pytest.raises(TypeCheckError, match="parameter 'factor'"):
        Scaled().by(torch.ones(1, 1), torch.ones(1, 1), "3")  # pyright: ignore[reportArgumentType]


def test_annotations_stay_as_they_were_written() -> None:
    assert Scaled.by.__annotations__["return"] is Self
