"""Branch weights and the weighted sum of branches."""

import torch
from random_numbers import numbers

from visattn.blocks.split_attention import radix_softmax
from visattn.functional.gates import merge_branches


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
