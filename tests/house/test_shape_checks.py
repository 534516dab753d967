"""The checks of shapes are on, and as strict as they are meant to be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from shape_checks import around_shapes, checked
from torch import Tensor

from visattn.metrics.maps.grounding import attention_correctness


class Scaled:
    @jaxtyped(typechecker=checked)
    def by(self, x: Float[Tensor, "b c"], y: Float[Tensor, "b c"], factor: float = 1) -> Self:
        self.product = factor * x * y
        return self


def test_functions_of_visattn_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="attention_correctness"):
        attention_correctness(torch.rand(2, 3, 5), torch.rand(2, 3, 7))


def test_what_says_no_shape_is_left_alone_and_what_does_is_found() -> None:
    decorate = around_shapes(typechecker=checked)

    def plain(x: int, names: dict[str, list[int]]) -> str:
        return f"{x} {names}"

    @dataclass
    class Held:
        x: Float[Tensor, " n"]
        y: Float[Tensor, " n"]

    def nested(made: Callable[[], tuple[Float[Tensor, "2 c"], ...]]) -> None:
        made()

    assert decorate(plain) is plain
    assert decorate(Held) is Held
    assert decorate(nested) is not nested
    first, second = cast("list[Any]", [plain, nested])
    assert decorate(property(first)).fget is plain
    assert decorate(classmethod(second)).__func__ is not nested
    with pytest.raises(TypeCheckError, match="'y'"):
        Held(torch.ones(2), torch.ones(3))


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
