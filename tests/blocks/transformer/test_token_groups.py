"""Attention in groups with global tokens against masks, loops and full attention."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.transformer.token_attention import (
    TokenGroups,
    dense_mask_and_bias,
    exclude_self,
    grouped_attention,
    neighborhood_groups,
    window_groups,
)
from visattn.functional.attention import dot_product_attention, dot_product_attention_weights
from visattn.functional.positions import relative_position_bias
from visattn.functional.windows import neighborhood_attention, window_attention


def parts(count: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(count)
    queries, keys, values = torch.randn(3, 2, 5, count, 3, generator=random).double()
    return queries, keys, values


GROUPS = {
    "whole windows": window_groups((4, 6), (2, 3)),
    "windows": window_groups((5, 7), (2, 3), num_prefix_tokens=3),
    "shifted": window_groups((5, 7), (3, 3), (1, 2), num_prefix_tokens=1),
    "neighbors": neighborhood_groups((5, 7), (3, 5), num_prefix_tokens=2),
    "neighbors but not itself": exclude_self(
        neighborhood_groups((5, 7), (3, 3), num_prefix_tokens=2)
    ),
    "windows but not itself": exclude_self(
        window_groups((5, 7), (2, 3), (1, 1), num_prefix_tokens=1)
    ),
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("biased", [False, True])
def test_matches_masked_attention(name: str, biased: bool) -> None:
    groups = GROUPS[name]
    count = groups.num_prefix_tokens + (24 if name == "whole windows" else 35)
    queries, keys, values = parts(count)
    bias = None
    if biased:
        table = torch.randn(5, 3, 5, generator=torch.Generator().manual_seed(1)).double()
        width = 6 if name == "whole windows" else 7
        bias = relative_position_bias(
            table, groups.queries, groups.keys, width, num_prefix_tokens=groups.num_prefix_tokens
        )
    pairs, biases = dense_mask_and_bias(groups, torch.arange(count), count, bias)
    actual = grouped_attention(queries, keys, values, groups, bias=bias, scale=0.7)
    expected, _ = dot_product_attention(queries, keys, values, mask=pairs, bias=biases, scale=0.7)
    torch.testing.assert_close(actual, expected)
    queried = torch.tensor([count - 1, 0, 7])
    mask, dense_bias = dense_mask_and_bias(groups, queried, count, bias)
    weights = dot_product_attention_weights(
        queries[:, :, queried], keys, mask=mask, bias=dense_bias, scale=0.7
    )
    torch.testing.assert_close(weights @ values, actual[:, :, queried])


def test_without_global_tokens_equals_window_and_neighborhood_attention() -> None:
    on_grid = [part.unflatten(2, (5, 7)) for part in parts(35)]
    windows, rows = window_attention(
        *on_grid, window_size=(2, 3), shift_size=(1, 1), need_weights=True
    )
    groups = window_groups((5, 7), (2, 3), (1, 1))
    torch.testing.assert_close(grouped_attention(*parts(35), groups), windows.flatten(2, 3))
    assert rows is not None
    assert torch.equal(dense_mask_and_bias(groups, torch.arange(35), 35)[0], rows[0, 0] > 0)
    near, _ = neighborhood_attention(*on_grid, kernel_size=(3, 3))
    groups = neighborhood_groups((5, 7), (3, 3))
    torch.testing.assert_close(grouped_attention(*parts(35), groups), near.flatten(2, 3))


@pytest.mark.parametrize(
    "groups",
    [
        window_groups((5, 7), (5, 7), num_prefix_tokens=2),
        window_groups((5, 7), (9, 11), (4, 5), num_prefix_tokens=2),
        neighborhood_groups((5, 7), (5, 7), num_prefix_tokens=2),
        neighborhood_groups((5, 7), (11, 13), num_prefix_tokens=2),
    ],
)
def test_single_group_equals_full_attention(groups: TokenGroups) -> None:
    queries, keys, values = parts(37)
    result = grouped_attention(queries, keys, values, groups)
    torch.testing.assert_close(result, dot_product_attention(queries, keys, values)[0])


def test_relative_position_bias_is_indexed_by_offset() -> None:
    table = torch.arange(2 * 5 * 3).view(2, 5, 3).double()
    tokens = torch.arange(-1, 3 + 4 * 7)
    biases = relative_position_bias(table, tokens, tokens, 7, num_prefix_tokens=3)
    for i, query in enumerate(tokens.tolist()):
        for j, key in enumerate(tokens.tolist()):
            if min(query, key) < 3:
                assert not biases[:, i, j].any()
                continue
            down = max(-2, min(2, (key - 3) // 7 - (query - 3) // 7))
            right = max(-1, min(1, (key - 3) % 7 - (query - 3) % 7))
            assert torch.equal(biases[:, i, j], table[:, down + 2, right + 1])


def test_even_bias_table_is_refused() -> None:
    with pytest.raises(ValueError, match="must have odd sides, got 3 x 4"):
        relative_position_bias(torch.zeros(2, 3, 4), torch.arange(4), torch.arange(4), 2)
