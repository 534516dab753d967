"""Runtime shape checks are active and strict."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from shape_checks import around_shapes, checked, forget_calls
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


def test_the_first_calls_with_the_same_shapes_are_checked() -> None:
    shown: list[Tensor] = []

    def last(x: Float[Tensor, " n"], count: int) -> Float[Tensor, " 2"]:
        return shown.pop()

    decorated: Any = around_shapes(typechecker=checked)(last)
    shown += [torch.ones(3), *[torch.ones(2)] * 3]
    for _ in range(3):
        decorated(torch.ones(5), count=1)
    assert decorated(torch.ones(5), count=1).shape == (3,)  # the fourth is not checked
    for x in (torch.ones(7), torch.ones(5).requires_grad_().double()):  # other shapes and types are
        shown.append(torch.ones(3))
        with pytest.raises(TypeCheckError):
            decorated(x, count=1)
    forget_calls()
    shown.append(torch.ones(3))
    with pytest.raises(TypeCheckError):
        decorated(torch.ones(5), count=1)
