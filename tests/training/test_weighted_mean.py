"""The weighted mean does not depend on how its updates are split."""

import math
from typing import Any

import torch
from hypothesis import given, strategies as st

from visattn.training.metrics import WeightedMean

PARTS = st.lists(st.tuples(st.floats(-99, 99), st.integers(0, 13)), min_size=1, max_size=11)


@given(parts=PARTS, split=st.data())
def test_any_split_over_processes_gives_the_same_mean(
    parts: list[tuple[float, int]], split: st.DataObject
) -> None:
    count = sum(part[1] for part in parts)
    single = WeightedMean()
    single.update(sum(part[0] for part in parts), count)
    means = [WeightedMean() for _ in range(3)]  # three processes
    for part in parts:
        means[split.draw(st.integers(0, 2))].update(*part)
    combined = WeightedMean()
    combined.update(sum(m.amount for m in means), sum(m.count for m in means))
    if count:
        torch.testing.assert_close(combined.compute(), single.compute())
        torch.testing.assert_close(float(single.compute()), sum(p[0] for p in parts) / count)
    else:
        assert not math.isfinite(float(combined.compute()))


def test_mean_without_updates_is_nan() -> None:
    mean = WeightedMean()
    mean.update(3, 4)
    mean.reset()
    mean.update(0, 0)
    assert math.isnan(float(mean.compute()))


def test_states_are_summed_over_processes() -> None:
    reductions: dict[str, Any] = WeightedMean()._reductions
    assert {name: reduce.__name__ for name, reduce in reductions.items()} == {
        "amount": "dim_zero_sum",
        "count": "dim_zero_sum",
    }


def test_many_small_updates_are_not_lost() -> None:
    mean = WeightedMean()
    mean.update(2.0**24, 2**24)
    for _ in range(1000):
        mean.update(1.0, 1)
    assert float(mean.count) == 2**24 + 1000  # single precision would have stopped counting
