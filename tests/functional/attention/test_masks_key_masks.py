"""Masks that are one row of keys."""

import pytest
import torch

from visattn.functional.attention.masks import key_mask, length_mask


def test_the_row_that_all_queries_share_is_returned() -> None:
    mask = length_mask(torch.tensor([2, 0, 3]), 3)
    assert torch.equal(key_mask(mask, "any"), mask[:, 0])


def test_rows_per_query_are_refused() -> None:
    mask = torch.ones(2, 5, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask of mine must .* \[..., 1, 7\].* got \[2, 5, 7\]"):
        key_mask(mask, "mine")
