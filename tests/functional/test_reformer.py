"""LSH attention against a loop over buckets and against full attention."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import dot_product_attention
from visattn.functional.masks import causal_mask, length_mask
from visattn.functional.reformer import lsh_attention, lsh_buckets


def attended_keys(
    buckets: Tensor, chunk: int, allowed: list[bool], *, causal: bool
) -> list[set[int]]:
    """Return the keys of each query: those of its bucket in its chunk and the previous one."""
    count = buckets.shape[-1]
    attended: list[set[int]] = [set() for _ in range(count)]
    for row in buckets.tolist():
        order = sorted(range(count), key=lambda place: (row[place], place))
        stands = {place: slot // chunk for slot, place in enumerate(order)}
        for i in range(count):
            for j in range(count):
                near = stands[i] - stands[j] in (0, 1)
                if row[i] == row[j] and near and allowed[j] and (j <= i or not causal):
                    attended[i].add(j)
    return [places - {i} or places & {i} for i, places in enumerate(attended)]


@pytest.mark.parametrize(
    ("num_buckets", "num_rounds", "chunk", "causal"),
    [(4, 1, 12, False), (4, 3, 12, True), (2, 2, 3, False), (6, 2, 2, True), (1, 2, 5, False)],
)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_matches_a_loop_over_buckets_and_chunks(
    num_buckets: int,
    num_rounds: int,
    chunk: int,
    causal: bool,
    need_weights: bool,
    masked: bool,
) -> None:
    shared, values = numbers(2, 23, 3), numbers(2, 23, 5, seed=1)
    real = [23, 17] if masked else [23, 23]
    mask = length_mask(torch.tensor(real), 23) if masked else None
    buckets = lsh_buckets(shared, num_buckets, num_rounds=num_rounds, seed=7)
    output, weights = lsh_attention(
        shared, values, buckets, chunk_size=chunk, causal=causal, mask=mask,
        need_weights=need_weights,
    )  # fmt: skip
    for b in range(2):
        allowed = [place < real[b] for place in range(23)]
        attended = attended_keys(buckets[b], chunk, allowed, causal=causal)
        for i in range(23):
            expected = torch.zeros(23, dtype=torch.float64)
            if attended[i]:
                places = sorted(attended[i])
                keys = shared[b, places] / shared[b, places].norm(dim=-1, keepdim=True)
                expected[places] = (keys @ shared[b, i] / 3**0.5).softmax(0)
            torch.testing.assert_close(output[b, i], expected @ values[b])
            if weights is not None:
                torch.testing.assert_close(weights[b, i], expected)
    assert (weights is not None) == need_weights


@pytest.mark.parametrize("causal", [False, True])
def test_single_bucket_equals_full_attention_without_the_diagonal(causal: bool) -> None:
    shared, values = numbers(2, 3, 11, 5), numbers(2, 3, 11, 7, seed=1)
    options: dict[str, Any] = {"chunk_size": 11, "causal": causal}
    bucket = lsh_buckets(shared, 1)
    output, weights = lsh_attention(shared, values, bucket, **options, need_weights=True)
    others = ~torch.eye(11, dtype=torch.bool)
    if causal:
        others = others & causal_mask(11, alignment="upper_left")
        others[0, 0] = True  # the first attends to itself, having no other
    keys = shared / shared.norm(dim=-1, keepdim=True)
    expected, full = dot_product_attention(shared, keys, values, mask=others, need_weights=True)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, full)
    without, _ = lsh_attention(shared, values, bucket, **options)
    torch.testing.assert_close(without, expected)


@settings(max_examples=12)
@given(many=st.sampled_from([1, 2, 4, 8]), rounds=st.integers(1, 4), causal=st.booleans())
def test_values_agree_with_and_without_weights(many: int, rounds: int, *, causal: bool) -> None:
    shared, values = numbers(2, 29, 5).float(), numbers(2, 29, 7, seed=1).float()
    buckets = lsh_buckets(shared, many, num_rounds=rounds)
    options: dict[str, Any] = {"chunk_size": -(-58 // many), "causal": causal}
    output, none = lsh_attention(shared, values, buckets, **options)
    looked, weights = lsh_attention(shared, values, buckets, **options, need_weights=True)
    assert none is None
    assert weights is not None
    torch.testing.assert_close(output, looked, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 29))


def test_buckets_depend_on_the_seed_only() -> None:
    shared = numbers(2, 29, 5)
    state = torch.get_rng_state()
    first = lsh_buckets(shared, 8, num_rounds=2, seed=1)
    torch.rand(3)
    assert torch.equal(lsh_buckets(shared, 8, num_rounds=2, seed=1), first)
    assert not torch.equal(lsh_buckets(shared, 8, num_rounds=2, seed=2), first)
    assert not torch.equal(first[:, 0], first[:, 1])
    torch.set_rng_state(state)
    lsh_buckets(shared, 8)
    assert torch.equal(torch.get_rng_state(), state)


@given(length=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_buckets_are_scale_invariant_and_separate_opposite_vectors(
    length: float, seed: int
) -> None:
    vectors = numbers(13, 5, seed=seed)
    buckets = lsh_buckets(vectors, 6, num_rounds=3, seed=seed)
    assert buckets.shape == (3, 13)
    assert ((buckets >= 0) & (buckets < 6)).all()
    assert torch.equal(lsh_buckets(length * vectors, 6, num_rounds=3, seed=seed), buckets)
    assert torch.equal(lsh_buckets(-vectors, 6, num_rounds=3, seed=seed), (buckets + 3) % 6)


def test_gradients_are_correct_and_finite() -> None:
    shared, values = numbers(1, 7, 3).requires_grad_(), numbers(1, 7, 2).requires_grad_()
    mask = length_mask(torch.tensor([5]), 7)

    def attend(shared: Tensor, values: Tensor) -> Tensor:
        buckets = lsh_buckets(shared, 4, num_rounds=2)
        return lsh_attention(shared, values, buckets, chunk_size=4, causal=True, mask=mask)[0]

    assert torch.autograd.gradcheck(attend, (shared, values), fast_mode=True)
    hidden = torch.zeros(1, 1, 7).bool()
    nothing, _ = lsh_attention(shared, values, lsh_buckets(shared, 4), chunk_size=4, mask=hidden)
    assert not nothing.any()
    assert all(s.isfinite().all() for s in torch.autograd.grad(nothing.sum(), (shared, values)))


def test_half_precision_is_computed_in_float32() -> None:
    shared, values = numbers(1, 29, 5).half(), numbers(1, 29, 7).half()
    buckets = lsh_buckets(shared, 4, num_rounds=2)
    output, _ = lsh_attention(shared, values, buckets, chunk_size=15)
    assert output.dtype == torch.float16
    whole, _ = lsh_attention(shared.float(), values.float(), buckets, chunk_size=15)
    assert torch.equal(output, whole.half())


def test_invalid_options_are_refused() -> None:
    shared, values = numbers(1, 7, 3), numbers(1, 7, 5)
    cases: list[dict[str, Any]] = [
        {"num_buckets": 3},
        {"num_buckets": 0},
        {"num_buckets": 2, "num_rounds": 0},
    ]
    for wrong in cases:
        with pytest.raises(
            ValueError, match=f"1 or an even number.* got num_buckets={wrong['num_buckets']}"
        ):
            lsh_buckets(shared, **wrong)
    buckets = lsh_buckets(shared, 2)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        lsh_attention(shared, values, buckets, chunk_size=0)
    square = causal_mask(7, alignment="upper_left")
    with pytest.raises(ValueError, match=r"lsh_attention must be one row.* got \[7, 7\]"):
        lsh_attention(shared, values, buckets, chunk_size=7, mask=square)
