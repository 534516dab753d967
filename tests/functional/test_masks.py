"""Attention masks against loops over queries and keys."""

import pytest
import torch

from visattn.functional.masks import causal_mask, length_mask


@pytest.mark.parametrize(("queries", "keys"), [(7, 11), (11, 7), (5, 5)])
def test_causal_masks_match_loops(queries: int, keys: int) -> None:
    first = [[j <= i for j in range(keys)] for i in range(queries)]
    last = [[keys - j >= queries - i for j in range(keys)] for i in range(queries)]
    assert causal_mask(queries, keys, alignment="upper_left").tolist() == first
    assert causal_mask(queries, keys, alignment="lower_right").tolist() == last


def test_length_mask_excludes_padding() -> None:
    lengths = torch.tensor([[3, 0], [5, 2]])
    mask = length_mask(lengths, 5)
    assert mask.shape == (2, 2, 1, 5)
    assert torch.equal(mask.sum((-2, -1)), lengths)
    assert mask[0, 0, 0].tolist() == [True, True, True, False, False]


def test_length_mask_combines_with_causal_mask() -> None:
    mask = length_mask(torch.tensor([5, 2]), 5) & causal_mask(3, 5, alignment="lower_right")
    assert mask.shape == (2, 3, 5)
    assert mask.int().sum(-1).tolist() == [[3, 4, 5], [2, 2, 2]]


def test_unknown_alignments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # without shape checks, whose message names the alignments too
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match="upper_left.*got 'left'"):
        causal_mask(2, alignment="left")  # pyright: ignore[reportArgumentType]
