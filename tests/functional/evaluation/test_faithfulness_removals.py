"""The order in which pixels go, and the area under what remains."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.functional.evaluation.faithfulness import area_under_curve, removal_mask, removal_ranks

PIXELS = 35


def shuffled(seed: int, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(PIXELS, generator=generator) for _ in range(count)])


@given(st.lists(st.integers(0, 5), min_size=PIXELS, max_size=PIXELS), st.integers(0, 99))
def test_each_has_one_turn_and_no_larger_value_comes_later(levels: list[int], seed: int) -> None:
    values = torch.tensor([levels, levels]).float()
    ranks = removal_ranks(values, shuffled(seed))
    assert torch.equal(ranks.sort(1).values, torch.arange(PIXELS).expand(2, -1))
    in_turn = torch.empty_like(values).scatter_(1, ranks, values)
    assert bool((in_turn.diff(dim=1) <= 0).all())


def test_equals_follow_the_order_of_ties() -> None:
    ties = shuffled(1)
    ranks = removal_ranks(torch.zeros(2, PIXELS), ties)
    assert torch.equal(ranks.gather(1, ties), torch.arange(PIXELS).expand(2, -1))


def test_a_share_is_rounded_to_pixels() -> None:
    ranks = removal_ranks(torch.rand(2, PIXELS), shuffled(2))
    counts = [int(removal_mask(ranks, share, (5, 7))[0].sum()) for share in (0, 0.1, 0.5, 1)]
    assert counts == [0, 4, 18, 35]
    with pytest.raises(ValueError, match=r"fraction must be 0 to 1, got 1\.5"):
        removal_mask(ranks, 1.5, (5, 7))
    with pytest.raises(ValueError, match="5 x 5 pixels are not 35"):
        removal_mask(ranks, 0.5, (5, 5))


def test_area_by_hand_with_both_ends() -> None:
    shares = torch.tensor([0.0, 0.25, 1.0])
    assert area_under_curve(torch.tensor([[4.0, 2.0, 0.0]]), shares).tolist() == [1.5]
    for wrong in ([0.25, 1.0], [0.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.0]):
        with pytest.raises(ValueError, match="must increase from 0 to 1"):
            area_under_curve(torch.ones(len(wrong)), torch.tensor(wrong))
