"""Attention over tokens: against timm and loops, recorded rows, special cases."""

from typing import Any

import jaxtyping
import pytest
import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from visattn.blocks.transformer.token_attention import TokenAttention, TokenLayout, linear_attention
from visattn.functional.positions import apply_rotary, rotary_cos_sin
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


VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "normalized": {"qk_norm": True, "qkv_bias": False},
    "relative": {"max_relative_position": (2, 3)},
    "lsa": {"lsa": True},
    "windows": {"attn_type": "window", "window_size": (2, 3), "max_relative_position": (1, 2)},
    "shifted": {"attn_type": "shifted", "window_size": (3, 3), "lsa": True},
    "neighborhood": {
        "attn_type": "neighborhood",
        "window_size": (3, 5),
        "max_relative_position": (2, 4),
    },
    "linear": {"attn_type": "linear"},
}


@pytest.mark.parametrize("qk_norm", [False, True])
def test_full_attention_matches_timm(qk_norm: bool) -> None:
    ours = made(qk_norm=qk_norm)
    theirs: Any = Attention(12, 3, qkv_bias=True, qk_norm=qk_norm, norm_layer=nn.LayerNorm).double()
    theirs.load_state_dict(ours.state_dict())
    if qk_norm:
        theirs.q_norm.eps = theirs.k_norm.eps = 1e-6
    torch.testing.assert_close(ours(X, LAYOUT), theirs(X))


@pytest.mark.parametrize("name", VARIANTS)
def test_recorded_rows_reproduce_the_values(name: str) -> None:
    attend = made(**VARIANTS[name])
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
    if "lsa" in VARIANTS[name]:
        assert not rows.diagonal(dim1=-2, dim2=-1).any()


@pytest.mark.parametrize("name", VARIANTS)
def test_selected_rows_and_heads_match_the_full_recording(name: str) -> None:
    attend = made(**VARIANTS[name])
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


@pytest.mark.parametrize(
    "whole",
    [
        {"attn_type": "window", "window_size": (5, 7)},
        {"attn_type": "shifted", "window_size": (11, 13)},
        {"attn_type": "neighborhood", "window_size": (9, 13)},
    ],
)
@pytest.mark.parametrize("more", [{}, {"lsa": True}, {"max_relative_position": (4, 6)}])
def test_windows_and_neighborhoods_over_the_grid_equal_full_attention(
    whole: dict[str, Any], more: dict[str, Any]
) -> None:
    torch.testing.assert_close(made(**whole, **more)(X, LAYOUT), made(**more)(X, LAYOUT))


def test_linear_attention_with_equal_keys_equals_full_attention() -> None:
    ours, full = made(attn_type="linear"), made()
    for attend in (ours, full):
        attend.qkv.weight.data[12:24] = 0
    torch.testing.assert_close(ours(X, LAYOUT), full(X, LAYOUT))
    queries, keys, values = made().qkv(X).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    wanted = linear_attention(queries, keys, values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(made(attn_type="linear")(X, LAYOUT), made().proj(wanted))


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


def test_rotary_embedding_skips_prefix_tokens() -> None:
    attend, turns = made(), rotary_cos_sin(GRID, 4)
    still = torch.cat((torch.ones(3, 2), turns[0])), torch.cat((torch.zeros(3, 2), turns[1]))
    layout = LAYOUT._replace(rotation=tuple(part[None, None].double() for part in still))
    queries, keys, values = attend.qkv(X).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    turned = [
        torch.cat((part[:, :, :3], apply_rotary(part[:, :, 3:], *(t.double() for t in turns))), 2)
        for part in (queries, keys)
    ]
    weights = (turned[0] @ turned[1].mT / 2).softmax(-1)
    wanted = attend.proj((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attend(X, layout), wanted)


def test_dropped_tokens_have_no_weights() -> None:
    kept = torch.tensor([[0, 3, 34], [1, 2, 20]])
    x, attend = numbers(2, 6, 12), made()
    layout = LAYOUT._replace(keep_indices=kept)
    with record(attend, queries="class") as recording:
        attend(x, layout)
    with record(attend) as everything:
        attend(x, layout)
    assert recording.maps[0].values.shape == (2, 3, 1, *GRID)
    assert recording.maps[0].values.isfinite().sum((1, 2, 3, 4)).tolist() == [9, 9]
    torch.testing.assert_close(recording.weights[0].nansum(-1), torch.ones(2, 3, 1).double())
    assert everything.weights[0].isfinite().sum((1, 2, 3)).tolist() == [108, 108]
    torch.testing.assert_close(
        everything.weights[0][:, :, :1], recording.weights[0], equal_nan=True
    )


def test_invalid_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="heads must divide dim 12, got 5"):
        TokenAttention(12, num_heads=5)
    with pytest.raises(ValueError, match="linear attention has no softmax"):
        TokenAttention(12, num_heads=3, attn_type="linear", lsa=True)
    with pytest.raises(ValueError, match="sides of a neighborhood must be odd"):
        made(attn_type="neighborhood", window_size=(2, 3))(X, LAYOUT)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # without shape checks
    with pytest.raises(ValueError, match="attn_type must be one of full, window"):
        TokenAttention(12, num_heads=3, attn_type="banded")  # pyright: ignore[reportArgumentType]
