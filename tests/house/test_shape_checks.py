"""Runtime shape checks are active and strict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from shape_checks import around_shapes, checked
from torch import Tensor

from visattn.metrics.grounding import attention_correctness


class Scaled:
    @jaxtyped(typechecker=checked)
    def by(self, x: Float[Tensor, "b c"], y: Float[Tensor, "b c"], factor: float = 1) -> Self:
        self.product = factor * x * y
        return self


def test_shapes_of_visattn_functions_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="attention_correctness"):
        attention_correctness(torch.rand(2, 3, 5), torch.rand(2, 3, 7))


def test_functions_with_shapes_are_checked_and_others_are_unchanged() -> None:
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


def test_methods_with_a_self_type_are_checked() -> None:
    assert Scaled().by(torch.rand(2, 3), torch.rand(2, 3)).product.shape == (2, 3)
    with pytest.raises(TypeCheckError, match="parameter 'y'"):
        Scaled().by(torch.rand(2, 3), torch.rand(2, 5))


def test_int_is_accepted_for_float() -> None:
    assert Scaled().by(torch.ones(1, 1), torch.ones(1, 1), 3).product.item() == 3
    with pytest.raises(TypeCheckError, match="parameter 'factor'"):
        Scaled().by(torch.ones(1, 1), torch.ones(1, 1), "3")  # pyright: ignore[reportArgumentType]


def test_annotations_are_unchanged() -> None:
    assert Scaled.by.__annotations__["return"] is Self
