"""What several processes make of their parts is what one makes of the whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from visattn.training.distributed import reduce as fair_shares
from visattn.training.distributed.reduce import (
    fair_share,
    known_anywhere,
    mean_of_all,
    spread_of_all,
)

parts = st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=5), min_size=2, max_size=4)


def among(given: list[Tensor], compute: Callable[[Tensor], Any]) -> list[Any]:
    """Return what each process computes, when every one has its part of what is given.

    Sums over processes are those of what the other processes hand over at the same place.
    """
    handed: list[Tensor] = []

    def collect(own: Tensor) -> None:
        handed.append(own.clone())

    def reduce(own: Tensor) -> None:
        own.copy_(torch.stack(handed).sum(0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_shares, "processes", lambda: len(given))
        patch.setattr(fair_shares.distributed, "all_reduce", collect)
        for part in given:
            compute(part)
        patch.setattr(fair_shares.distributed, "all_reduce", reduce)
        return [compute(part) for part in given]


@given(parts)
def test_means_weighed_by_fair_shares_average_to_the_mean_of_all(values: list[list[float]]) -> None:
    given = [torch.tensor(part) for part in values]
    device = torch.device("cpu")
    found = among(given, lambda part: part.mean() * fair_share(len(part), device))
    assert float(sum(found) / len(found)) == pytest.approx(float(torch.cat(given).mean()), abs=1e-5)


def test_a_process_with_nothing_has_no_share() -> None:
    given = [torch.ones(0), torch.ones(3)]
    found = among(given, lambda part: fair_share(len(part), torch.device("cpu")))
    assert [float(one) for one in found] == [0, 2]
    none = among([given[0]] * 2, lambda part: fair_share(len(part), torch.device("cpu")))
    assert [float(one) for one in none] == [0, 0]


@given(parts)
def test_the_spread_is_that_of_all_values(values: list[list[float]]) -> None:
    given = [torch.tensor(part, dtype=torch.float64) for part in values]
    wanted = float(torch.cat(given).std())
    for found in among(given, spread_of_all):
        assert float(found) == pytest.approx(wanted, abs=1e-5)


def test_the_mean_is_that_of_all_processes() -> None:
    found = among([torch.tensor(3.0), torch.tensor(7.0)], mean_of_all)
    assert [float(one) for one in found] == [5, 5]


def test_all_know_what_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(every: list[Any], own: set[str]) -> None:
        every[:] = [{"b", "c"}, own]

    monkeypatch.setattr(fair_shares, "processes", lambda: 2)
    monkeypatch.setattr(fair_shares.distributed, "all_gather_object", gather)
    assert known_anywhere({"b", "a"}) == ["a", "b", "c"]
