"""A share is the same however its parts come in."""

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.training.metrics.weighted_mean import WeightedMean

PARTS = st.lists(st.tuples(st.floats(-99, 99), st.integers(0, 13)), min_size=1, max_size=11)


@given(parts=PARTS, split=st.data())
def test_any_split_gives_the_same_share(
    parts: list[tuple[float, int]], split: st.DataObject
) -> None:
    count = sum(part[1] for part in parts)
    once = WeightedMean()
    once.update(sum(part[0] for part in parts), count)
    shares = [WeightedMean() for _ in range(3)]  # three processes
    for part in parts:
        shares[split.draw(st.integers(0, 2))].update(*part)
    together = WeightedMean()
    together.update(sum(s.amount for s in shares), sum(s.count for s in shares))
    if count:
        torch.testing.assert_close(together.compute(), once.compute())
        torch.testing.assert_close(float(once.compute()), sum(p[0] for p in parts) / count)
    else:
        assert not math.isfinite(float(together.compute()))


def test_nothing_is_nan_and_reset_forgets() -> None:
    share = WeightedMean()
    share.update(3, 4)
    share.reset()
    share.update(0, 0)
    assert math.isnan(float(share.compute()))


def test_processes_add_up() -> None:
    reductions: dict[str, Any] = WeightedMean()._reductions
    assert {name: how.__name__ for name, how in reductions.items()} == {
        "amount": "dim_zero_sum",
        "count": "dim_zero_sum",
    }


def test_a_million_small_parts_do_not_drown() -> None:
    share = WeightedMean()
    share.update(2.0**24, 2**24)
    for _ in range(1000):
        share.update(1.0, 1)
    assert float(share.count) == 2**24 + 1000  # single precision would have stopped counting
