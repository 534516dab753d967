"""Attention masks against loops over queries and keys."""

import torch

from visattn.functional.masks import causal_mask, length_mask


def test_causal_masks_match_loops() -> None:
    for queries, keys in ((7, 11), (11, 7), (5, 5)):
        first = [[j <= i for j in range(keys)] for i in range(queries)]
        last = [[keys - j >= queries - i for j in range(keys)] for i in range(queries)]
        assert causal_mask(queries, keys, alignment="upper_left").tolist() == first
        assert causal_mask(queries, keys, alignment="lower_right").tolist() == last


def test_length_masks_exclude_padding_and_combine_with_causal_ones() -> None:
    lengths = torch.tensor([[3, 0], [5, 2]])
    mask = length_mask(lengths, 5)
    assert mask.shape == (2, 2, 1, 5)
    assert torch.equal(mask.sum((-2, -1)), lengths)
    assert mask[0, 0, 0].tolist() == [True, True, True, False, False]
    both = length_mask(torch.tensor([5, 2]), 5) & causal_mask(3, 5, alignment="lower_right")
    assert both.int().sum(-1).tolist() == [[3, 4, 5], [2, 2, 2]]
