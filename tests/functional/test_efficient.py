"""Efficient attention: each pattern against full attention with a mask, and against its paper."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import dot_product_attention
from visattn.functional.efficient import (
    Output,
    linformer_attention,
    lsh_attention,
    lsh_buckets,
    neighborhood_attention,
    strided_attention,
)

GRID, COUNT = (5, 7), 35
Q, K, V = numbers(2, 3, COUNT, 4), numbers(2, 3, COUNT, 4, seed=1), numbers(2, 3, COUNT, 6, seed=2)


def around(place: int, size: int, kernel: int) -> list[int]:
    """The kernel positions nearest to a position; at a border they lie on one side of it."""
    first = place - kernel // 2
    while first < 0:
        first += 1
    while first > 0 and first + kernel > size:
        first -= 1
    return [other for other in range(first, first + kernel) if other < size]


def neighbors(kernel: int) -> Callable[[int, int, int, int], bool]:
    return lambda y, x, u, w: u in around(y, 5, kernel) and w in around(x, 7, kernel)


PATTERNS: dict[str, tuple[Callable[..., Output], Callable[[int, int, int, int], bool]]] = {
    "1 x 1": (lambda *a, **k: neighborhood_attention(*a, kernel_size=1, **k), neighbors(1)),
    "3 x 3": (lambda *a, **k: neighborhood_attention(*a, kernel_size=3, **k), neighbors(3)),
    "5 x 5": (lambda *a, **k: neighborhood_attention(*a, kernel_size=5, **k), neighbors(5)),
    "whole": (lambda *a, **k: neighborhood_attention(*a, kernel_size=9, **k), lambda *_: True),
    "strided": (strided_attention, lambda y, x, u, w: y == u or x == w),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_on_the_grid_is_full_attention_with_a_mask(name: str) -> None:
    attend, attends = PATTERNS[name]
    rows = [[attends(*divmod(n, 7), *divmod(m, 7)) for m in range(COUNT)] for n in range(COUNT)]
    expected = dot_product_attention(Q, K, V, mask=torch.tensor(rows), need_weights=True)
    torch.testing.assert_close(attend(Q, K, V, GRID, need_weights=True), expected)
    output, nothing = attend(Q, K, V, GRID)
    torch.testing.assert_close(output, expected[0])
    assert nothing is None


def test_linformer_attends_to_mixtures_and_with_as_many_as_keys_to_the_keys() -> None:
    mixing = numbers(4, COUNT, seed=3)
    output, weights = linformer_attention(Q, K, V, mixing, need_weights=True)
    for n in (0, 20):
        mixed = [
            torch.stack([w * k for w, k in zip(row, K[0, 1], strict=True)]).sum(0) for row in mixing
        ]
        scores = torch.stack([Q[0, 1, n] @ key / 2 for key in mixed])
        assert weights is not None
        torch.testing.assert_close(weights[0, 1, n], scores.softmax(0))
        torch.testing.assert_close(output[0, 1, n], scores.softmax(0) @ (mixing @ V[0, 1]))
    full = dot_product_attention(Q, K, V, need_weights=True)
    identity = torch.eye(COUNT, dtype=Q.dtype)
    torch.testing.assert_close(linformer_attention(Q, K, V, identity, need_weights=True), full)


def attended_keys(buckets: Tensor, chunk: int) -> list[set[int]]:
    """The keys of each query: those of its bucket in its chunk and the one before, or itself."""
    count = buckets.shape[-1]
    attended: list[set[int]] = [set() for _ in range(count)]
    for row in buckets.tolist():
        order = sorted(range(count), key=lambda place: (row[place], place))
        stands = {place: slot // chunk for slot, place in enumerate(order)}
        for i in range(count):
            for j in range(count):
                if row[i] == row[j] and stands[i] - stands[j] in (0, 1):
                    attended[i].add(j)
    return [places - {i} or {i} for i, places in enumerate(attended)]


@pytest.mark.parametrize(
    ("half", "rounds", "chunk"), [(2, 1, 12), (2, 3, 12), (1, 2, 3), (3, 2, 2), (9, 2, 5)]
)
@pytest.mark.parametrize("need_weights", [False, True])
def test_lsh_attention_is_a_loop_over_buckets_and_chunks(
    half: int, rounds: int, chunk: int, need_weights: bool
) -> None:
    shared, values = numbers(2, 23, 3), numbers(2, 23, 5, seed=1)
    buckets = lsh_buckets(shared, numbers(rounds, 3, half, seed=7))
    output, weights = lsh_attention(
        shared, values, buckets, chunk_size=chunk, need_weights=need_weights
    )
    assert (weights is not None) == need_weights
    for b in range(2):
        for i, attended in enumerate(attended_keys(buckets[b], chunk)):
            expected = torch.zeros(23, dtype=torch.float64)
            keys = shared[b, sorted(attended)]
            keys = keys / keys.norm(dim=-1, keepdim=True)
            expected[sorted(attended)] = (keys @ shared[b, i] / 3**0.5).softmax(0)
            torch.testing.assert_close(output[b, i], expected @ values[b])
            if weights is not None:
                torch.testing.assert_close(weights[b, i], expected)


@given(length=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_buckets_know_directions_alone_and_separate_opposite_ones(length: float, seed: int) -> None:
    vectors, rotations = numbers(13, 5, seed=seed), numbers(3, 5, 3, seed=seed + 1)
    buckets = lsh_buckets(vectors, rotations)
    assert buckets.shape == (3, 13)
    assert torch.equal(lsh_buckets(length * vectors, rotations), buckets)
    assert torch.equal(lsh_buckets(-vectors, rotations), (buckets + 3) % 6)
