"""Neighborhood attention against loops and full attention."""

from math import exp

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import dot_product_attention
from visattn.functional.windows import neighborhood_attention


def parts(height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (numbers(2, height, width, c, seed=c) for c in (3, 3, 5))
    return queries, keys, values


def around(place: int, size: int, kernel: int) -> list[int]:
    """Return the kernel positions nearest to a position; at a border they lie on one side of it."""
    first = place - kernel // 2
    while first < 0:
        first += 1
    while first > 0 and first + kernel > size:
        first -= 1
    return [other for other in range(first, first + kernel) if other < size]


@pytest.mark.parametrize("kernel", [(3, 5), (1, 1), (5, 3), (3, 9)])
def test_matches_a_loop(kernel: tuple[int, int]) -> None:
    q, k, v = parts(5, 7)
    output, weights = neighborhood_attention(q, k, v, kernel_size=kernel, need_weights=True)
    assert weights is not None
    for b in range(2):
        for y in range(5):
            for x in range(7):
                rows, columns = around(y, 5, kernel[0]), around(x, 7, kernel[1])
                expected = torch.zeros(5, 7, dtype=torch.float64)
                for u in rows:
                    for w in columns:
                        expected[u, w] = exp(q[b, y, x] @ k[b, u, w] / 3**0.5)
                expected /= expected.sum()
                torch.testing.assert_close(weights[b, 7 * y + x].unflatten(0, (5, 7)), expected)
                torch.testing.assert_close(
                    output[b, y, x], torch.einsum("uw,uwe->e", expected, v[b])
                )


@pytest.mark.parametrize("kernel", [(5, 7), (9, 13)])
def test_full_neighborhood_equals_full_attention(kernel: tuple[int, int]) -> None:
    q, k, v = parts(5, 7)
    output, weights = neighborhood_attention(q, k, v, kernel_size=kernel, need_weights=True)
    expected, full = dot_product_attention(
        *(part.flatten(1, 2) for part in (q, k, v)), need_weights=True
    )
    torch.testing.assert_close(output.flatten(1, 2), expected)
    torch.testing.assert_close(weights, full)


def test_values_agree_with_and_without_weights() -> None:
    q, k, v = (part.float().unsqueeze(1).expand(-1, 2, -1, -1, -1) for part in parts(5, 7))
    output, none = neighborhood_attention(q, k, v, kernel_size=(3, 3))
    looked, weights = neighborhood_attention(q, k, v, kernel_size=(3, 3), need_weights=True)
    assert none is None
    assert weights is not None
    torch.testing.assert_close(output, looked, atol=1e-6, rtol=0)
    product = (weights @ v.flatten(2, 3)).unflatten(2, (5, 7))
    torch.testing.assert_close(product, output, atol=1e-6, rtol=0)


def test_gradients() -> None:
    q, k, v = (numbers(3, 4, c, seed=c).requires_grad_() for c in (2, 2, 1))

    def attend(*inputs: Tensor) -> Tensor:
        return neighborhood_attention(*inputs, kernel_size=(3, 3))[0]

    assert torch.autograd.gradcheck(attend, (q, k, v), fast_mode=True)


def test_kernel_sizes_must_be_odd() -> None:
    q, k, v = parts(5, 7)
    for kernel in ((2, 3), (3, 0), (-1, 3)):
        with pytest.raises(ValueError, match=f"must be odd.* got {kernel[0]} x {kernel[1]}"):
            neighborhood_attention(q, k, v, kernel_size=kernel)
