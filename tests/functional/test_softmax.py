"""Softmax attention on both paths against its equation: masks, biases and half precision."""

import pytest
import torch
from hypothesis import given, strategies as st
from random_numbers import numbers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from visattn.functional.attention import dot_product_attention, masked_softmax

BOTH = pytest.mark.parametrize("need_weights", [False, True])
LEADS: list[tuple[int, ...]] = [(), (2,), (2, 3), (2, 3, 5)]


def inputs(
    *lead: int, dtype: torch.dtype = torch.float64, width: int = 3
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((*lead, 5, 7), (*lead, 11, 7), (*lead, 11, width))
    query, keys, values = (
        numbers(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)
    )
    return query, keys, values


def random_mask() -> Tensor:
    """Return a random mask whose second query is fully masked."""
    mask = torch.rand(5, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    mask[0, 0], mask[1] = True, False
    return mask


def equation(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, added: Tensor | float
) -> tuple[Tensor, Tensor]:
    exponentials = (query @ keys.mT / 7**0.5 + added).exp()
    allowed = exponentials if mask is None else exponentials * mask
    weights = allowed / allowed.sum(-1, keepdim=True).clamp_min(1e-300)
    return weights @ values, weights


@given(
    lead=st.sampled_from(LEADS),
    share=st.none() | st.floats(0, 1),
    biased=st.booleans(),
    width=st.sampled_from([3, 7]),
    seed=st.integers(0, 99),
)
def test_both_paths_are_the_equation_in_values_and_gradients(
    lead: tuple[int, ...], share: float | None, biased: bool, width: int, seed: int
) -> None:
    """Also where a query may attend to no key: it gets zeros."""
    parts, bias = inputs(*lead, width=width), numbers(*lead[1:], 5, 11).requires_grad_()
    random = torch.Generator().manual_seed(seed)
    mask = None if share is None else torch.rand(*lead[-1:], 5, 11, generator=random) < share
    right, rows = equation(*parts, mask, bias if biased else 0.0)
    learned, slope = [*parts, bias] if biased else parts, numbers(*right.shape, seed=seed)
    expected = torch.autograd.grad(right, learned, slope)
    for need_weights in (False, True):
        output, weights = dot_product_attention(
            *parts, mask=mask, bias=bias if biased else None, need_weights=need_weights
        )
        torch.testing.assert_close(output, right)
        gradients = torch.autograd.grad(output, learned, slope, retain_graph=True)
        torch.testing.assert_close(gradients, expected)
        assert (weights is None) != need_weights
    torch.testing.assert_close(weights, rows)
    [through] = torch.autograd.grad(output.sum(), [weights])  # type: ignore[list-item]
    torch.testing.assert_close(through, parts[2].sum(-1)[..., None, :].expand(rows.shape))


@BOTH
def test_a_scale_takes_the_place_of_the_root_of_the_width(need_weights: bool) -> None:
    query, keys, values = inputs(2)
    output, _ = dot_product_attention(query, keys, values, scale=0.3, need_weights=need_weights)
    torch.testing.assert_close(output, equation(query * 0.3 * 7**0.5, keys, values, None, 0.0)[0])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_fully_masked_rows_are_zero_with_zero_gradients(
    dtype: torch.dtype, need_weights: bool
) -> None:
    for mask in (random_mask(), torch.zeros(1, 11).bool()):
        parts = inputs(2, 3, dtype=dtype)
        output, _ = dot_product_attention(*parts, mask=mask, need_weights=need_weights)
        slopes = torch.autograd.grad(output.float().sum(), parts)
        assert not output[..., 1, :].any()
        assert not slopes[0][..., 1, :].any()
        assert all(slope.isfinite().all() for slope in slopes)


def test_masked_scores_may_be_nonfinite() -> None:
    mask = random_mask()
    scores = numbers(5, 11).masked_fill(~mask, torch.nan).requires_grad_()
    weights = masked_softmax(scores, mask)
    [slope] = torch.autograd.grad(weights.square().sum(), scores)
    assert slope.isfinite().all()
    assert (slope[~mask] == 0).all()
    assert torch.equal(masked_softmax(scores.detach().nan_to_num(0.0), mask), weights)


class Kernels(TorchDispatchMode):
    """Records the kernels that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lead", LEADS)
def test_fused_kernel_runs_without_need_weights(lead: tuple[int, ...]) -> None:
    query, keys, _ = inputs(*lead, dtype=torch.float32)
    for shape in (None, (5, 11), (*lead, 1, 11), (*lead[-1:], 5, 11)):
        allowed = None if shape is None else torch.rand(shape) < 0.7
        with Kernels() as kernels:
            dot_product_attention(query, keys, keys, mask=allowed)
        assert any("flash" in name or "efficient" in name for name in kernels.names)
        assert not any("softmax" in name for name in kernels.names)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_softmax_is_computed_in_float32(
    dtype: torch.dtype, need_weights: bool
) -> None:
    query, keys, values = inputs(2, 3, dtype=dtype)
    query, keys = 100 * query, 100 * keys  # products beyond what a half can hold
    output, weights = dot_product_attention(
        query, keys, values, scale=1e-4, need_weights=need_weights
    )
    expected, rows = dot_product_attention(
        query.double(), keys.double(), values.double(), scale=1e-4, need_weights=True
    )
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, atol=0.02, rtol=0)
    if weights is not None:
        assert weights.dtype == dtype
        torch.testing.assert_close(weights.double(), rows, atol=2**-8, rtol=0)
