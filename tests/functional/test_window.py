"""Window attention against loops and full attention."""

from math import exp

import pytest
import torch
from hypothesis import given, strategies as st
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import dot_product_attention
from visattn.functional.windows import (
    dense_to_window_weights,
    padded_window_indices,
    window_attention,
    window_indices,
    window_slots,
    window_weights_to_dense,
)


def parts(height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (numbers(2, height, width, c, seed=c) for c in (3, 3, 5))
    return queries, keys, values


def piece(place: int, size: int, window: int, shift: int) -> int:
    return 0 if window >= size else (place - shift) // window


@pytest.mark.parametrize(
    ("window", "shift"),
    [((2, 3), (0, 0)), ((2, 3), (1, 2)), ((5, 7), (2, 3)), ((3, 9), (1, 4)), ((1, 1), (0, 0))],
)
def test_matches_a_loop_over_windows(window: tuple[int, int], shift: tuple[int, int]) -> None:
    q, k, v = parts(5, 7)
    output, weights = window_attention(
        q, k, v, window_size=window, shift_size=shift, need_weights=True
    )
    assert weights is not None
    pieces = [
        (piece(y, 5, window[0], shift[0]), piece(x, 7, window[1], shift[1]))
        for y in range(5)
        for x in range(7)
    ]
    flat_q, flat_k, flat_v = (part.flatten(1, 2) for part in (q, k, v))
    for b in range(2):
        for n in range(35):
            raw = [
                exp(flat_q[b, n] @ flat_k[b, m] / 3**0.5) if pieces[m] == pieces[n] else 0.0
                for m in range(35)
            ]
            expected = torch.tensor(raw, dtype=torch.float64) / sum(raw)
            torch.testing.assert_close(weights[b, n], expected)
            torch.testing.assert_close(output[b, n // 7, n % 7], expected @ flat_v[b])


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    shift=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_windows_partition_the_grid(
    height: int, width: int, window: tuple[int, int], shift: tuple[int, int]
) -> None:
    shift = (shift[0] % window[0], shift[1] % window[1])
    places, mask = window_indices((height, width), window, shift)
    valid = places[places >= 0]
    assert valid.sort().values.tolist() == list(range(height * width))
    assert places.shape[0] == -(-height // window[0]) * -(-width // window[1])
    assert mask is None or not (mask & (places < 0).unsqueeze(-2)).any()


@pytest.mark.parametrize("shift", [(0, 0), (2, 3)])
@pytest.mark.parametrize("window", [(5, 7), (8, 11)])
def test_single_window_equals_full_attention(
    window: tuple[int, int], shift: tuple[int, int]
) -> None:
    q, k, v = parts(5, 7)
    output, weights = window_attention(
        q, k, v, window_size=window, shift_size=shift, need_weights=True
    )
    expected, full = dot_product_attention(
        *(part.flatten(1, 2) for part in (q, k, v)), need_weights=True
    )
    torch.testing.assert_close(output.flatten(1, 2), expected)
    torch.testing.assert_close(weights, full)


@pytest.mark.parametrize("shift", [(0, 0), (1, 2)])
@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_values_agree_with_and_without_weights(
    size: tuple[int, int], shift: tuple[int, int]
) -> None:
    q, k, v = (part.float().unsqueeze(1).expand(-1, 2, -1, -1, -1) for part in parts(*size))
    output, none = window_attention(q, k, v, window_size=(2, 3), shift_size=shift)
    looked, weights = window_attention(
        q, k, v, window_size=(2, 3), shift_size=shift, need_weights=True
    )
    assert none is None
    assert weights is not None
    torch.testing.assert_close(output, looked, atol=1e-6, rtol=0)
    product = (weights @ v.flatten(2, 3)).unflatten(2, size)
    torch.testing.assert_close(product, output, atol=1e-6, rtol=0)


@pytest.mark.parametrize("need_weights", [False, True])
def test_gradients_are_correct_and_finite_with_padded_windows(need_weights: bool) -> None:
    q, k, v = (numbers(3, 2, c, seed=c).requires_grad_() for c in (2, 2, 3))

    def attend(*inputs: Tensor) -> Tensor:
        return window_attention(
            *inputs, window_size=(2, 2), shift_size=(1, 0), need_weights=need_weights
        )[0]

    assert torch.autograd.gradcheck(attend, (q, k, v), fast_mode=True)


def test_window_sizes_must_be_positive() -> None:
    q, k, v = parts(5, 7)
    with pytest.raises(ValueError, match="got window_size=0, shift_size=0"):
        window_attention(q, k, v, window_size=(2, 0))
    with pytest.raises(ValueError, match="got window_size=2, shift_size=2"):
        window_attention(q, k, v, window_size=(2, 3), shift_size=(2, 0))
    with pytest.raises(ValueError, match="got window_size=3, shift_size=-1"):
        window_attention(q, k, v, window_size=(2, 3), shift_size=(0, -1))


def filled_line(size: int, window: int, shift: int) -> tuple[list[list[int]], list[list[bool]]]:
    """A line that is shifted, padded and split into windows, and which slots are wrapped."""
    turned = [*range(shift % size, size), *range(shift % size)]
    turned += [-1] * (-size % window)
    last = [slot >= len(turned) - shift for slot in range(len(turned))]
    starts = range(0, len(turned), window)
    return [turned[s : s + window] for s in starts], [last[s : s + window] for s in starts]


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    moved=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_padding_follows_the_cyclic_shift(
    size: tuple[int, int], window: tuple[int, int], moved: tuple[int, int]
) -> None:
    shift = (moved[0] % window[0], moved[1] % window[1])
    places, mask = padded_window_indices(size, window, shift)
    rows, columns = (filled_line(*line) for line in zip(size, window, shift, strict=True))
    number = 0
    for row, low in zip(*rows, strict=True):
        for column, right in zip(*columns, strict=True):
            cells = [y * size[1] + x if min(y, x) >= 0 else -1 for y in row for x in column]
            assert places[number].tolist() == cells
            part = [(a, b) if min(y, x) >= 0 else None
                    for y, a in zip(row, low, strict=True)
                    for x, b in zip(column, right, strict=True)]  # fmt: skip
            for n, place in enumerate(part):
                for m, other in enumerate(part):
                    if place is not None and other is not None:
                        assert mask is None or bool(mask[number, n, m]) == (place == other)
            number += 1
    assert (mask is None) == (shift == (0, 0))
    slots = window_slots(places, size[0] * size[1])
    assert torch.equal(places.flatten()[slots], torch.arange(size[0] * size[1]))


@pytest.mark.parametrize("shift", [(0, 0), (1, 2), (0, 3)])
def test_no_padding_when_windows_tile_the_grid(shift: tuple[int, int]) -> None:
    actual, expected = (
        make((6, 10), (3, 5), shift) for make in (padded_window_indices, window_indices)
    )
    assert torch.equal(actual[0], expected[0])
    assert (actual[1] is None) == (expected[1] is None)
    if actual[1] is not None and expected[1] is not None:
        assert torch.equal(actual[1], expected[1])


CASES = [
    ((6, 10), (3, 5), (0, 0)),
    ((6, 10), (3, 5), (1, 2)),
    ((5, 7), (2, 3), (1, 1)),
    ((2, 7), (5, 3), (2, 1)),
]


@pytest.mark.parametrize(("grid", "window", "shift"), CASES)
def test_window_weights_to_dense_matches_a_loop_and_inverts(
    grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]
) -> None:
    places, _ = padded_window_indices(grid, window, shift)
    count = grid[0] * grid[1]
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(2, 3, *places.shape, places.shape[1], generator=generator).double()
    expected = torch.zeros(2, 3, count, count, dtype=torch.float64)
    for number, slots in enumerate(places.tolist()):
        for asking, row in enumerate(slots):
            for offered, column in enumerate(slots):
                if row >= 0 and column >= 0:
                    expected[:, :, row, column] = weights[:, :, number, asking, offered]
    dense = window_weights_to_dense(weights, places, count)
    assert torch.equal(dense, expected)
    rows = [count - 1, 0]
    assert torch.equal(window_weights_to_dense(weights, places, count, rows), expected[:, :, rows])
    assert torch.equal(dense_to_window_weights(dense, weights, places), weights)
