"""Branch weights and the weighted sum of branches."""

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.blocks.split_attention import radix_softmax
from visattn.functional.gates import branch_softmax, merge_branches


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


@given(scale=st.floats(0.01, 1000), branches=st.integers(1, 5))
@settings(max_examples=20)
def test_weights_sum_to_one_per_channel(scale: float, branches: int) -> None:
    weights = branch_softmax(scale * numbers(2, branches, 7))
    torch.testing.assert_close(weights.sum(1), torch.ones(2, 7, dtype=torch.float64))
    assert (weights >= 0).all()


def test_radix_softmax_reorders_groups_and_splits() -> None:
    scores = numbers(2, 2 * 3 * 5)
    weights = radix_softmax(scores, radix=3, groups=2)
    assert weights.shape == (2, 3, 10)
    for b in range(2):
        for group in range(2):
            for c in range(5):
                places = [(group * 3 + split) * 5 + c for split in range(3)]
                expected = scores[b, places].softmax(0)
                torch.testing.assert_close(weights[b, :, group * 5 + c], expected)


def test_single_split_uses_a_sigmoid() -> None:
    scores = numbers(2, 7)
    torch.testing.assert_close(radix_softmax(scores, radix=1, groups=7)[:, 0], scores.sigmoid())


def test_merged_branches_are_the_weighted_sum() -> None:
    branches, weights = numbers(3, 2, 5, 3, 7), numbers(2, 3, 5, seed=1)
    expected = torch.einsum("mbcyx,bmc->bcyx", branches, weights)
    torch.testing.assert_close(merge_branches(branches.unbind(0), weights), expected)


@given(place=st.integers(0, 2))
def test_one_hot_weights_select_their_branch(place: int) -> None:
    branches = numbers(3, 2, 5, 3, 7)
    weights = torch.eye(3, dtype=torch.float64)[place][None, :, None].expand(2, 3, 5)
    assert torch.equal(merge_branches(branches.unbind(0), weights), branches[place])
