"""Multi-head attention against torch and loops, masks, and recorded weights."""

from typing import Any

import pytest
import torch
from random_numbers import numbers
from torch import nn

from visattn.blocks.multi_head import MultiHeadAttention
from visattn.recording.recorder import record


def twins() -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Return visattn's and torch's modules with equal weights."""
    ours = MultiHeadAttention(12, num_heads=3).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    return ours, theirs


QUERY, KEYS, VALUES = numbers(2, 11, 12), numbers(2, 13, 12, seed=1), numbers(2, 13, 12, seed=2)
UNEVEN = torch.ones(11, 13).tril().bool()  # all rows and all columns differ
PADDING = torch.tensor([[False] * 9 + [True] * 4, [False] * 4 + [True] * 9])


@pytest.mark.parametrize("mask", [None, "places", "padding", "both"])
def test_matches_torch_multi_head_attention(mask: str | None) -> None:
    ours, theirs = twins()
    blocked = ~UNEVEN if mask in ("places", "both") else None
    padding = PADDING if mask in ("padding", "both") else None
    expected, rows = theirs(
        QUERY, KEYS, VALUES, attn_mask=blocked, key_padding_mask=padding,
        average_attn_weights=False,
    )  # fmt: skip
    allowed = {
        None: None,
        "places": UNEVEN,
        "padding": ~PADDING.unsqueeze(-2),
        "both": UNEVEN & ~PADDING.unsqueeze(-2),
    }[mask]
    output, weights = ours(QUERY, KEYS, VALUES, mask=allowed, need_weights=True)
    torch.testing.assert_close((output, weights), (expected, rows), atol=1e-12, rtol=0)
    fused, nothing = ours(QUERY, KEYS, VALUES, mask=allowed)
    torch.testing.assert_close(fused, expected, atol=1e-12, rtol=0)
    assert nothing is None


def test_masks_may_differ_per_image_and_head() -> None:
    attend, _ = twins()
    each = torch.stack((UNEVEN, UNEVEN.flip(1)))
    output, _ = attend(QUERY, KEYS, VALUES, mask=each)
    for b in range(2):
        alone, _ = attend(QUERY[b : b + 1], KEYS[b : b + 1], VALUES[b : b + 1], mask=each[b])
        torch.testing.assert_close(alone[0], output[b])
    by_head = torch.stack((UNEVEN, UNEVEN.flip(0), UNEVEN.flip(1))).expand(2, 3, 11, 13)
    _, weights = attend(QUERY, KEYS, VALUES, mask=by_head, need_weights=True)
    assert weights is not None
    assert torch.equal(weights > 0, by_head)


@pytest.mark.parametrize("need_weights", [False, True])
def test_fully_padded_rows_are_zero_with_finite_gradients(need_weights: bool) -> None:
    """torch returns NaN here when it returns weights."""
    attend, theirs = twins()
    for bias in (attend.out.bias, theirs.out_proj.bias):
        bias.data.zero_()
    mask = (torch.arange(13) < torch.tensor([0, 13])[:, None])[:, None]
    output, weights = attend(QUERY, KEYS, VALUES, mask=mask, need_weights=need_weights)
    assert (output[0] == 0).all()
    assert (output[1] != 0).all()
    assert weights is None or (weights[0] == 0).all()
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in attend.parameters())
    broken, _ = theirs(QUERY, KEYS, VALUES, key_padding_mask=~mask.squeeze(1))
    assert broken[0].isnan().all()


def test_records_the_requested_rows() -> None:
    attend, _ = twins()
    plain, _ = attend(QUERY, KEYS[:, :6], VALUES[:, :6])
    attend.tap.grid = (2, 3)
    with record(attend) as recording:
        watched, unasked = attend(QUERY, KEYS[:, :6], VALUES[:, :6])
    assert unasked is None
    torch.testing.assert_close(watched, plain, atol=1e-6, rtol=0)
    [attention_map] = recording.maps
    _, weights = attend(QUERY, KEYS[:, :6], VALUES[:, :6], need_weights=True)
    assert weights is not None
    assert attention_map.kind == "tokens"
    assert torch.equal(attention_map.values, weights.unflatten(-1, (2, 3)))


def test_weights_without_a_grid_are_not_recorded() -> None:
    words = MultiHeadAttention(12, num_heads=3).double()
    places = MultiHeadAttention(12, num_heads=3).double()
    model = nn.ModuleDict({"words": words, "places": places})
    places.tap.grid = (1, 11)
    with record(model) as recording:
        places(words(QUERY)[0])
    assert [attention_map.site for attention_map in recording.maps] == ["places.tap"]


@pytest.mark.compile
@pytest.mark.parametrize(
    "options",
    [{}, {"mask": torch.eye(11).bool(), "need_weights": True}],
)
def test_compiles_as_one_graph(options: dict[str, Any]) -> None:
    attend = MultiHeadAttention(12, num_heads=3)
    tokens = torch.randn(2, 11, 12)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens, **options), attend(tokens, **options))


@pytest.mark.compile
def test_exports_for_any_batch_and_length() -> None:
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
