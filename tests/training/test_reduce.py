"""Reductions over several processes equal those of one process with all values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.training import reduce
from visattn.training.reduce import (
    all_gather_union,
    all_reduce,
    all_reduce_std,
    ddp_loss_scale,
)

parts = st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=5), min_size=2, max_size=4)


def on_all_ranks(values: list[Tensor], compute: Callable[[Tensor], Any]) -> list[Any]:
    """Return what each process computes from its part; `all_reduce` sums over all parts."""
    contributions: list[Tensor] = []

    def collect(own: Tensor, **_: Any) -> None:
        contributions.append(own.clone())

    def add_up(own: Tensor, **_: Any) -> None:
        own.copy_(torch.stack(contributions).sum(0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "world_size", lambda: len(values))
        patch.setattr(reduce.distributed, "all_reduce", collect)
        for part in values:
            compute(part)
        patch.setattr(reduce.distributed, "all_reduce", add_up)
        return [compute(part) for part in values]


@given(parts)
def test_means_weighed_by_reductions_average_to_the_mean_of_all(values: list[list[float]]) -> None:
    tensors = [torch.tensor(part) for part in values]
    device = torch.device("cpu")
    results = on_all_ranks(tensors, lambda part: part.mean() * ddp_loss_scale(len(part), device))
    assert float(sum(results) / len(results)) == pytest.approx(
        float(torch.cat(tensors).mean()), abs=1e-5
    )


def test_the_loss_scale_of_an_empty_process_is_zero() -> None:
    tensors = [torch.ones(0), torch.ones(3)]
    results = on_all_ranks(tensors, lambda part: ddp_loss_scale(len(part), torch.device("cpu")))
    assert [float(value) for value in results] == [0, 2]
    none = on_all_ranks(
        [tensors[0]] * 2, lambda part: ddp_loss_scale(len(part), torch.device("cpu"))
    )
    assert [float(value) for value in none] == [0, 0]


@given(parts)
def test_std_is_that_of_all_values(values: list[list[float]]) -> None:
    tensors = [torch.tensor(part, dtype=torch.float64) for part in values]
    expected = float(torch.cat(tensors).std())
    for results in on_all_ranks(tensors, all_reduce_std):
        assert float(results) == pytest.approx(expected, abs=1e-5)


def test_sum_is_that_of_all_processes() -> None:
    results = on_all_ranks([torch.tensor(3.0), torch.tensor(7.0)], all_reduce)
    assert [float(value) for value in results] == [10, 10]


def test_union_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(every: list[Any], own: set[str]) -> None:
        every[:] = [{"b", "c"}, own]

    monkeypatch.setattr(reduce, "world_size", lambda: 2)
    monkeypatch.setattr(reduce.distributed, "all_gather_object", gather)
    assert all_gather_union({"b", "a"}) == ["a", "b", "c"]
