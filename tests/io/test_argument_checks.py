"""Checks of arguments by the signatures of functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from torch import Tensor, nn, zeros

from visattn.io.argument_checks import check_argument, checked_arguments, fits


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [3, np.int64(3)], [True, 3.0, "3", None]),
        (float, [3, 0.5, np.float32(0.5), float("inf")], [True, "3", float("nan"), 1j]),
        (bool, [True], [1, "yes"]),
        (str | None, ["", None], [b"", Path("a")]),
        (str | PathLike[str], ["a", Path("a")], [b"a", 3]),
        (Literal["a", "b"], ["a"], ["c", 1, ["a"]]),
        (tuple[int, int], [(3, 5), [3, 5]], [(3,), (3, "5"), 3, {3, 5}]),
        (Tensor | tuple[Any, ...], [zeros(1)], ["a", [zeros(1)]]),
        (Sequence[str], [["a"], ("a",), []], ["a", [1], {"a"}, zeros(2)]),
        (Iterable[int], [[3], range(3)], [5, "3", object()]),
        (Mapping[str, int] | None, [{}, None], [[], "a"]),
        (Callable[..., int], [len], [3, "len"]),
        (nn.Module, [nn.Identity()], ["model.safetensors", {}, nn.Identity, None]),
    ],
)
def test_values_have_the_types_of_signatures(hint: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if fits(value, hint) is False] == []
    assert [value for value in bad if fits(value, hint) is not False] == []


def test_what_is_often_passed_instead_of_a_model_is_advised() -> None:
    for value, advice in (
        ("m.safetensors", r"a torch module, got str 'm.safetensors'; load .* visattn.load"),
        (Path("m.pth"), r"got PosixPath .*; load a model from a file"),
        ({"weight": zeros(2)}, "got dict; build the model, and .* load_state_dict"),
        (None, "got NoneType"),
    ):
        with pytest.raises(TypeError, match=f"model must be .*{advice}"):
            check_argument("model", value, nn.Module)


def test_errors_come_before_the_function_runs_and_name_the_argument() -> None:
    ran: list[int] = []

    @checked_arguments(size=(1, 9))
    def draw(*ignored: int, size: int, mode: Literal["a", "b"] = "a", **options: int) -> None:
        ran.append(size)

    draw("x", size=7, other="x")  # pyright: ignore[reportArgumentType]
    for values, error in (({"size": 0}, ValueError), ({"size": "7"}, TypeError)):
        with pytest.raises(error, match=r"size must be .*, got "):
            draw(**values)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="mode must be one of a, b, got 'c'"):
        draw(size=7, mode="c")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"mode must be one of a, b, got \[0, 1"):
        draw(size=7, mode=list(range(99)))  # pyright: ignore[reportArgumentType]
    assert ran == [7]
