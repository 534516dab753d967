"""Tokens that stay: how many, how often, and where their weights lie."""

import pytest
import torch

from visattn.functional.tokens import random_token_indices, scatter_kept_weights


def test_all_tokens_stay_equally_often_and_in_order() -> None:
    torch.manual_seed(3)
    kept = random_token_indices(7000, 7, 3)
    assert kept.shape == (7000, 3)
    assert (kept.diff(dim=1) > 0).all()
    counts = kept.flatten().bincount(minlength=7).double()
    assert ((counts - 3000) ** 2 / 3000).sum() < 22.5  # chi-square, 6 degrees, one in a thousand
    sets = torch.tensor([1 << i for i in range(7)])[kept].sum(1).unique()
    assert len(sets) == 35


@pytest.mark.parametrize("kept", [0, 8])
def test_none_or_too_many_are_refused(kept: int) -> None:
    with pytest.raises(ValueError, match=f"num_kept must be from 1 to 7, got {kept}"):
        random_token_indices(2, 7, kept)


def test_weights_lie_where_their_tokens_were() -> None:
    weights, kept = torch.rand(2, 3, 5), torch.tensor([[0, 2, 6], [1, 4, 5]])
    found = scatter_kept_weights(weights, kept, num_tokens=9, num_prefix_tokens=2)
    for image in range(2):
        places = [0, 1, *(2 + int(place) for place in kept[image])]
        assert torch.equal(found[image][:, places], weights[image])
        others = sorted(set(range(9)) - set(places))
        assert found[image][:, others].isnan().all()
