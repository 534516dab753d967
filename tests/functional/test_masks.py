"""Attention masks against loops over queries and keys, and against the convention of torch."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

from visattn.functional.attention import dot_product_attention
from visattn.functional.masks import (
    band_mask,
    block_mask,
    causal_mask,
    dilated_mask,
    fixed_mask,
    global_local_mask,
    key_mask,
    key_padding_to_mask,
    length_mask,
    strided_mask,
)


def looped(rule: Callable[[int, int], bool], queries: int, keys: int) -> Tensor:
    return torch.tensor([[rule(i, j) for j in range(keys)] for i in range(queries)])


@pytest.mark.parametrize(("queries", "keys"), [(7, 11), (11, 7), (5, 5)])
def test_query_key_masks_match_loops(queries: int, keys: int) -> None:
    cases = [
        (causal_mask(queries, keys, alignment="upper_left"), lambda i, j: j <= i),
        (
            causal_mask(queries, keys, alignment="lower_right"),
            lambda i, j: keys - j >= queries - i,
        ),
        (band_mask(queries, keys, below=3, above=1), lambda i, j: j in range(i - 3, i + 2)),
        (block_mask(queries, keys, block_size=3), lambda i, j: i // 3 == j // 3),
        (
            dilated_mask(queries, keys, radius=2, dilation=3),
            lambda i, j: j in (i - 6, i - 3, i, i + 3, i + 6),
        ),
    ]
    for mask, rule in cases:
        assert torch.equal(mask, looped(rule, queries, keys))


def test_position_masks_match_loops() -> None:
    def summed(i: int, j: int) -> bool:
        return j <= i and (i // 5 == j // 5 or j % 5 in (3, 4))

    def allowed(i: int, j: int) -> bool:
        return abs(i - j) <= 2 or {i, j} & {1, 9} != set()

    strided = looped(lambda i, j: j <= i and (i - j <= 3 or (i - j) % 3 == 0), 17, 17)
    assert torch.equal(strided_mask(17, stride=3), strided)
    assert torch.equal(fixed_mask(17, block_size=5, num_summaries=2), looped(summed, 17, 17))
    assert torch.equal(
        global_local_mask(13, radius=2, global_tokens=(1, 9)), looped(allowed, 13, 13)
    )
    assert torch.equal(
        global_local_mask(13, radius=1, global_tokens=()), band_mask(13, below=1, above=1)
    )


@given(places=st.integers(1, 19), size=st.integers(1, 7))
def test_two_factorized_steps_reach_all_previous_positions(places: int, size: int) -> None:
    """Section 4.2 of the Sparse Transformer paper."""
    past = causal_mask(places, alignment="upper_left")
    for mask in (strided_mask(places, stride=size), fixed_mask(places, block_size=size)):
        assert torch.equal(mask.float() @ mask.float() > 0, past)


@given(places=st.integers(1, 19), radius=st.integers(0, 7))
def test_special_cases_of_masks_are_equal(places: int, radius: int) -> None:
    band = band_mask(places, below=radius, above=radius)
    assert torch.equal(dilated_mask(places, radius=radius, dilation=1), band)
    past = causal_mask(places, alignment="upper_left")
    assert torch.equal(past & band, band_mask(places, below=radius, above=0))
    assert torch.equal(past | past.T, block_mask(places, block_size=places))
    assert torch.equal(causal_mask(places, alignment="lower_right"), past)


def test_length_mask_excludes_padding() -> None:
    lengths = torch.tensor([[3, 0], [5, 2]])
    mask = length_mask(lengths, 5)
    assert mask.shape == (2, 2, 1, 5)
    assert torch.equal(mask.sum((-2, -1)), lengths)
    assert mask[0, 0, 0].tolist() == [True, True, True, False, False]


def test_length_mask_combines_with_position_mask() -> None:
    mask = length_mask(torch.tensor([5, 2]), 5) & causal_mask(3, 5, alignment="lower_right")
    assert mask.shape == (2, 3, 5)
    assert mask.int().sum(-1).tolist() == [[3, 4, 5], [2, 2, 2]]
    either = length_mask(torch.tensor([1, 0]), 5) | band_mask(3, 5, below=0, above=0)
    assert either.int().sum(-1).tolist() == [[1, 2, 2], [1, 1, 1]]


def test_key_padding_mask_has_the_inverse_of_the_torch_convention() -> None:
    """The same padding in the convention of torch and in that of visattn."""
    random = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(2, n, 6, generator=random, dtype=torch.float64) for n in (3, 5))
    padding = torch.tensor([[False, True, False, False, True], [False, False, False, True, True]])
    peer = nn.MultiheadAttention(6, 1, batch_first=True, dtype=torch.float64)
    expected, weights = peer(query, keys, keys, key_padding_mask=padding)
    parts = zip(peer.in_proj_weight.chunk(3), peer.in_proj_bias.chunk(3), strict=True)
    projected = [
        nn.functional.linear(x, *part) for x, part in zip((query, keys, keys), parts, strict=True)
    ]
    output, ours = dot_product_attention(
        *projected, mask=key_padding_to_mask(padding), need_weights=True
    )
    torch.testing.assert_close(ours, weights)
    torch.testing.assert_close(peer.out_proj(output), expected)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            lambda: causal_mask(2, alignment="left"),  # pyright: ignore[reportArgumentType]
            "upper_left.*got 'left'",
        ),
        (lambda: band_mask(3, below=-1, above=0), "below must be at least 0, got -1"),
        (lambda: band_mask(-3, below=1, above=0), "queries must be at least 0, got -3"),
        (lambda: block_mask(3, block_size=0), "size must be at least 1, got 0"),
        (lambda: dilated_mask(3, radius=1, dilation=0), "dilation must be at least 1, got 0"),
        (lambda: strided_mask(3, stride=0), "stride must be at least 1, got 0"),
        (
            lambda: fixed_mask(3, block_size=2, num_summaries=3),
            "between 0 and the block size 2, got 3",
        ),
        (lambda: global_local_mask(3, radius=1, global_tokens=(0, 3)), r"0 and 2, got \[3\]"),
    ],
)
def test_invalid_options_are_refused(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[], Tensor], message: str
) -> None:
    monkeypatch.setattr(
        "jaxtyping.config.jaxtyping_disable", True
    )  # without shape checks, whose message names the alignments too
    with pytest.raises(ValueError, match=message):
        broken()


def test_key_mask_is_the_row_that_all_queries_share() -> None:
    mask = length_mask(torch.tensor([2, 0, 3]), 3)
    assert torch.equal(key_mask(mask, "any"), mask[:, 0])


def test_key_mask_refuses_a_row_per_query() -> None:
    mask = torch.ones(2, 5, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask of mine must .* \[..., 1, 7\].* got \[2, 5, 7\]"):
        key_mask(mask, "mine")
