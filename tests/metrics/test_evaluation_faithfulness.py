"""Order of removal, area under the curve, and Spearman's correlation."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.metrics.faithfulness import (
    area_under_curve,
    average_ranks,
    removal_mask,
    removal_ranks,
    spearman_correlation,
)

PIXELS = 35


def shuffled(seed: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(PIXELS, generator=generator) for _ in range(count)])


@given(st.lists(st.integers(0, 5), min_size=PIXELS, max_size=PIXELS), st.integers(0, 99))
def test_removal_order_is_a_permutation_in_descending_order(levels: list[int], seed: int) -> None:
    values = torch.tensor([levels, levels]).float()
    ranks = removal_ranks(values, shuffled(seed))
    assert torch.equal(ranks.sort(1).values, torch.arange(PIXELS).expand(2, -1))
    in_turn = torch.empty_like(values).scatter_(1, ranks, values)
    assert bool((in_turn.diff(dim=1) <= 0).all())


def test_ties_follow_the_tie_breaker() -> None:
    ties = shuffled(1)
    ranks = removal_ranks(torch.zeros(2, PIXELS), ties)
    assert torch.equal(ranks.gather(1, ties), torch.arange(PIXELS).expand(2, -1))


def test_fractions_are_rounded_to_pixels() -> None:
    ranks = removal_ranks(torch.rand(2, PIXELS), shuffled(2))
    shares = torch.tensor([0, 0.1, 0.5, 1], dtype=torch.float64)
    counts = removal_mask(ranks, shares, (5, 7)).sum((2, 3))
    assert counts.tolist() == [[0, 0], [4, 4], [18, 18], [35, 35]]
    with pytest.raises(ValueError, match=r"fractions must be 0 to 1, got \[1\.5\]"):
        removal_mask(ranks, torch.tensor([1.5]), (5, 7))
    with pytest.raises(ValueError, match="5 x 5 pixels are not 35"):
        removal_mask(ranks, shares, (5, 5))


def test_area_under_curve_by_hand() -> None:
    shares = torch.tensor([0.0, 0.25, 1.0])
    assert area_under_curve(torch.tensor([[4.0, 2.0, 0.0]]), shares).tolist() == [1.5]
    for wrong in ([0.25, 1.0], [0.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.0]):
        with pytest.raises(ValueError, match="must increase from 0 to 1"):
            area_under_curve(torch.ones(len(wrong)), torch.tensor(wrong))


Levels = st.lists(st.integers(0, 4), min_size=7, max_size=7)


@given(Levels)
def test_ties_have_their_mean_rank(levels: list[int]) -> None:
    expected = [
        sum(other < own for other in levels) + (levels.count(own) - 1) / 2 for own in levels
    ]
    assert average_ranks(torch.tensor([levels]).double())[0].tolist() == expected


@given(Levels, Levels)
def test_spearman_is_the_correlation_of_ranks(first: list[int], second: list[int]) -> None:
    a, b = torch.tensor([first]).double(), torch.tensor([second]).double()
    result = spearman_correlation(a, b).item()
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert result == 0
    else:
        ranks = torch.cat([average_ranks(a), average_ranks(b)])
        assert result == pytest.approx(torch.corrcoef(ranks)[0, 1].item(), abs=1e-12)


def test_spearman_depends_on_the_order_only() -> None:
    a, b = torch.randn(3, 31), torch.randn(3, 31)
    assert torch.allclose(spearman_correlation(a, b), spearman_correlation(a.exp(), b**3))
    assert torch.allclose(spearman_correlation(a, -b), -spearman_correlation(a, b))
