"""Several heads against torch's own, against loops, and under masks; what the tap shows."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.transformer.multi_head import MultiHeadAttention
from visattn.functional.attention.masks import causal_mask, key_padding_to_mask, length_mask
from visattn.recording.recorder import record


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def twins(*, bias: bool = True) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Return ours and torch's, of three widths and with the same weights."""
    ours = MultiHeadAttention(12, num_heads=3, kdim=5, vdim=7, bias=bias).double()
    theirs = nn.MultiheadAttention(12, 3, kdim=5, vdim=7, bias=bias, batch_first=True).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
        weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        for weight, part in zip(weights, (ours.query, ours.key, ours.value), strict=True):
            weight.copy_(part.weight)
        theirs.out_proj.weight.copy_(ours.out.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key.bias, ours.value.bias)))
            theirs.out_proj.bias.copy_(ours.out.bias)
    return ours, theirs


QUERY, KEYS, VALUES = numbers(2, 11, 12), numbers(2, 13, 5, seed=1), numbers(2, 13, 7, seed=2)
UNEVEN = causal_mask(11, 13, alignment="upper_left")  # no two rows nor any two columns are alike
PADDING = torch.tensor([[False] * 9 + [True] * 4, [False] * 4 + [True] * 9])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [None, "places", "padding", "both"])
def test_it_is_torchs_multi_head_attention(mask: str | None, bias: bool) -> None:
    ours, theirs = twins(bias=bias)
    blocked = ~UNEVEN if mask in ("places", "both") else None
    padding = PADDING if mask in ("padding", "both") else None
    expected, rows = theirs(
        QUERY,
        KEYS,
        VALUES,
        attn_mask=blocked,
        key_padding_mask=padding,
        average_attn_weights=False,
    )
    allowed = {
        None: None,
        "places": UNEVEN,
        "padding": key_padding_to_mask(PADDING),
        "both": UNEVEN & key_padding_to_mask(PADDING),
    }[mask]
    seen, weights = ours(QUERY, KEYS, VALUES, mask=allowed, need_weights=True)
    torch.testing.assert_close((seen, weights), (expected, rows), atol=1e-12, rtol=0)
    fused, nothing = ours(QUERY, KEYS, VALUES, mask=allowed)
    torch.testing.assert_close(fused, expected, atol=1e-12, rtol=0)
    assert nothing is None


def test_it_is_the_papers_equation() -> None:
    """Head by head, scaled by the width of a head; which here is not that of the whole over it."""
    attend = MultiHeadAttention(12, num_heads=3, head_dim=5).double()
    seen, _ = attend(QUERY)
    heads = []
    for head in range(3):
        rows = slice(5 * head, 5 * head + 5)
        query, key, value = (
            QUERY @ part.weight[rows].T + part.bias[rows]
            for part in (attend.query, attend.key, attend.value)
        )
        heads.append((query @ key.mT / math.sqrt(5)).softmax(-1) @ value)
    torch.testing.assert_close(seen, torch.cat(heads, -1) @ attend.out.weight.T + attend.out.bias)


def test_a_mask_is_for_all_or_for_each() -> None:
    attend, _ = twins()
    each = torch.stack((UNEVEN, UNEVEN.flip(1)))
    seen, _ = attend(QUERY, KEYS, VALUES, mask=each)
    for b in range(2):
        alone, _ = attend(QUERY[b : b + 1], KEYS[b : b + 1], VALUES[b : b + 1], mask=each[b])
        torch.testing.assert_close(alone[0], seen[b])
    by_head = torch.stack((UNEVEN, UNEVEN.flip(0), UNEVEN.flip(1))).expand(2, 3, 11, 13)
    _, weights = attend(QUERY, KEYS, VALUES, mask=by_head, need_weights=True)
    assert weights is not None
    assert torch.equal(weights > 0, by_head)


@pytest.mark.parametrize("need_weights", [False, True])
def test_padding_alone_gives_zeros_and_finite_slopes(need_weights: bool) -> None:
    """Where torch's own gives NaN as soon as it is asked for weights."""
    attend, theirs = twins(bias=False)
    mask = length_mask(torch.tensor([0, 13]), 13)
    seen, weights = attend(QUERY, KEYS, VALUES, mask=mask, need_weights=need_weights)
    assert (seen[0] == 0).all()
    assert (seen[1] != 0).all()
    assert weights is None or (weights[0] == 0).all()
    seen.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attend.parameters())
    broken, _ = theirs(QUERY, KEYS, VALUES, key_padding_mask=~mask.squeeze(1))
    assert broken[0].isnan().all()


def test_nobody_sees_what_comes_after() -> None:
    attend = MultiHeadAttention(12, num_heads=3).double()
    whole, _ = attend(QUERY, causal="upper_left")
    changed = torch.cat((QUERY[:, :7], numbers(2, 4, 12, seed=5)), 1)
    torch.testing.assert_close(attend(changed, causal="upper_left")[0][:, :7], whole[:, :7])
    last, _ = attend(QUERY[:, 9:], QUERY, causal="lower_right")  # with keys kept from earlier steps
    torch.testing.assert_close(last, whole[:, 9:])


def test_positions_are_unknown_to_it() -> None:
    attend, _ = twins()
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    seen, _ = attend(QUERY, KEYS[:, order], VALUES[:, order])
    torch.testing.assert_close(seen, attend(QUERY, KEYS, VALUES)[0])


def test_the_tap_shows_what_is_asked_for() -> None:
    attend, _ = twins()
    plain, _ = attend(QUERY, KEYS[:, :6], VALUES[:, :6])
    attend.tap.grid = (2, 3)
    with record(attend) as seen:
        watched, unasked = attend(QUERY, KEYS[:, :6], VALUES[:, :6])
    assert unasked is None
    torch.testing.assert_close(watched, plain, atol=1e-6, rtol=0)
    [attention_map] = seen.maps
    _, weights = attend(QUERY, KEYS[:, :6], VALUES[:, :6], need_weights=True)
    assert weights is not None
    assert attention_map.kind == "tokens"
    assert torch.equal(attention_map.values, weights.unflatten(-1, (2, 3)))


def test_what_lies_on_no_grid_is_no_map() -> None:
    words = MultiHeadAttention(12, num_heads=3).double()
    places = MultiHeadAttention(12, num_heads=3).double()
    model = nn.ModuleDict({"words": words, "places": places})
    places.tap.grid = (1, 11)
    with record(model) as seen:
        places(words(QUERY)[0])
    assert [attention_map.site for attention_map in seen.maps] == ["places.tap"]


def test_every_parameter_learns_and_the_input_stays() -> None:
    attend = MultiHeadAttention(12, num_heads=3, kdim=5, vdim=7)
    parts = [part.float() for part in (QUERY, KEYS, VALUES)]
    kept = copy.deepcopy(parts)
    seen, _ = attend(*parts)
    seen.square().sum().backward()
    learning = {
        n: p.grad is not None and p.grad.abs().sum() > 0 for n, p in attend.named_parameters()
    }
    assert all(learning.values()), learning
    assert all(torch.equal(one, other) for one, other in zip(parts, kept, strict=True))


def test_its_parameters_are_four_maps() -> None:
    count = sum(
        p.numel() for p in MultiHeadAttention(12, num_heads=3, kdim=5, head_dim=7).parameters()
    )
    assert count == (12 + 1) * 21 + 2 * (5 + 1) * 21 + (21 + 1) * 12


def test_it_survives_being_copied_and_kept() -> None:
    attend, _ = twins()
    kept = io.BytesIO()
    torch.save(attend.state_dict(), kept)
    kept.seek(0)
    other = MultiHeadAttention(12, num_heads=3, kdim=5, vdim=7).double()
    other.load_state_dict(torch.load(kept, weights_only=True))
    expected, _ = attend(QUERY, KEYS, VALUES)
    for one in (other, copy.deepcopy(attend)):
        assert torch.equal(one(QUERY, KEYS, VALUES)[0], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "heads must divide the width 12, got 5"),
        ({"num_heads": 0}, "at least 1, got 12, 0"),
        ({"num_heads": 5, "head_dim": 0}, "at least 1, got 12, 5 and 0"),
    ],
)
def test_heads_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(12, **options)


def test_tokens_of_another_width_are_refused() -> None:
    attend, _ = twins()
    with pytest.raises(ValueError, match=r"the last axis of a key must be 5, got \[2, 11, 12\]"):
        attend(QUERY)


@pytest.mark.compile
@pytest.mark.parametrize(
    "options",
    [
        {"causal": "upper_left"},
        {"causal": "lower_right"},
        {"mask": torch.eye(11).bool(), "need_weights": True},
    ],
)
def test_it_is_one_graph(options: dict[str, Any]) -> None:
    attend = MultiHeadAttention(12, num_heads=3)
    tokens = torch.randn(2, 11, 12)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, **options), attend(tokens, **options))


@pytest.mark.compile
def test_it_is_exported_for_any_batch_and_number() -> None:
    attend = MultiHeadAttention(12, num_heads=3).eval()
    tokens, mask = torch.randn(2, 11, 12), torch.rand(2, 11, 11) < 0.5
    batch, number = torch.export.Dim("batch"), torch.export.Dim("number", min=2)
    exported = torch.export.export(
        attend,
        (tokens,),
        {"mask": mask},
        dynamic_shapes={"query": {0: batch, 1: number}, "mask": {0: batch, 1: number, 2: number}},
    ).module()
    tokens, mask = torch.randn(3, 7, 12), torch.rand(3, 7, 7) < 0.5
    torch.testing.assert_close(exported(tokens, mask=mask), attend(tokens, mask=mask))
