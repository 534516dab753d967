"""Attention over tokens: against timm and the authors of LSA, and recorded rows."""

from typing import Any

import pytest
import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout
from visattn.recording.recorder import record

GRID, ROLES = (5, 7), ("class", "register", "register")
LAYOUT = TokenLayout(GRID, ROLES)


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


X = numbers(2, 38, 12)


def made(**options: Any) -> TokenAttention:
    torch.manual_seed(5)
    attend = TokenAttention(12, num_heads=3, **options).double()
    for parameter in attend.parameters():
        nn.init.normal_(parameter, std=0.4)
    return attend


def test_full_attention_matches_timm() -> None:
    ours = made()
    theirs: Any = Attention(12, 3, qkv_bias=True).double()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(X, LAYOUT), theirs(X))
    with pytest.raises(ValueError, match="heads must divide dim 12, got 5"):
        TokenAttention(12, num_heads=5)


@pytest.mark.parametrize("lsa", [False, True])
def test_recorded_rows_reproduce_the_values(lsa: bool) -> None:
    attend = made(lsa=lsa)
    with record(attend) as recording:
        result = attend(X, LAYOUT)
    (rows,), (shown,) = recording.weights, recording.maps
    values = attend.qkv(X).unflatten(-1, (3, 3, 4))[:, :, 2].transpose(1, 2)
    torch.testing.assert_close(attend.proj((rows @ values).transpose(1, 2).flatten(2)), result)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 38).double())
    assert shown.values.shape == (2, 3, 38, *GRID)
    assert torch.equal(shown.values.flatten(-2), rows[..., 3:])
    assert shown.metadata["prefix_tokens"] == ROLES
    assert torch.equal(attend(X, LAYOUT), result)  # recording does not change the output
    if lsa:
        assert not rows.diagonal(dim1=-2, dim2=-1).any()


@pytest.mark.parametrize("lsa", [False, True])
def test_selected_rows_and_heads_match_the_full_recording(lsa: bool) -> None:
    attend = made(lsa=lsa)
    with record(attend) as everything:
        attend(X, LAYOUT)
    rows = everything.weights[0]
    wanted: list[tuple[Any, Any, Tensor]] = [
        ("class", None, rows[:, :, :1]),
        ("register", [2, 0], rows[:, [2, 0], 1:3]),
        ("patches", [-1], rows[:, 2:, 3:]),
        ([37, 0, -2], None, rows[:, :, [37, 0, 36]]),
    ]
    for queries, heads, expected in wanted:
        with record(attend, queries=queries, heads=heads) as recording:
            attend(X, LAYOUT)
        torch.testing.assert_close(recording.weights[0], expected)
        assert recording.maps[0].values.shape == (*expected.shape[:3], *GRID)


def test_locality_self_attention_matches_the_authors_code() -> None:
    attend = made(lsa=True)
    queries, keys, values = attend.qkv(X).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    assert attend.temperature is not None
    scores = (queries @ keys.mT) * attend.temperature
    scores[:, :, range(38), range(38)] = -987654321
    output = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attend(X, LAYOUT), attend.proj(output))
    fresh = TokenAttention(12, num_heads=3, lsa=True).temperature
    assert fresh is not None
    assert torch.equal(fresh, torch.full((3, 1, 1), 0.5))
