"""Spearman's correlation against a count by pairs."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.functional.evaluation.faithfulness import average_ranks, spearman_correlation

Levels = st.lists(st.integers(0, 4), min_size=7, max_size=7)


@given(Levels)
def test_a_rank_counts_what_is_below_and_half_of_what_is_equal(levels: list[int]) -> None:
    expected = [
        sum(other < own for other in levels) + (levels.count(own) - 1) / 2 for own in levels
    ]
    assert average_ranks(torch.tensor([levels]).double())[0].tolist() == expected


@given(Levels, Levels)
def test_it_is_the_correlation_of_ranks(one: list[int], other: list[int]) -> None:
    a, b = torch.tensor([one]).double(), torch.tensor([other]).double()
    found = spearman_correlation(a, b).item()
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found == 0
    else:
        ranks = torch.cat([average_ranks(a), average_ranks(b)])
        assert found == pytest.approx(torch.corrcoef(ranks)[0, 1].item(), abs=1e-12)


def test_only_the_order_counts() -> None:
    a, b = torch.randn(3, 31), torch.randn(3, 31)
    assert torch.allclose(spearman_correlation(a, b), spearman_correlation(a.exp(), b**3))
    assert torch.allclose(spearman_correlation(a, -b), -spearman_correlation(a, b))
