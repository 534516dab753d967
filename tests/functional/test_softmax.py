"""Softmax attention against torch's kernel: masked rows, biases and half precision."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from random_numbers import numbers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from visattn.functional.attention import (
    dot_product_attention,
    masked_softmax,
)

BOTH = pytest.mark.parametrize("need_weights", [False, True])


def inputs(*lead: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    query, keys, values = numbers(*lead, 5, 7), numbers(*lead, 11, 7, seed=1), numbers(*lead, 11, 3)
    return query.to(dtype), keys.to(dtype), values.to(dtype)


def random_mask() -> Tensor:
    """Return a random mask whose second query is fully masked."""
    mask = torch.rand(5, 11, generator=torch.Generator().manual_seed(0)) < 0.4
    mask[0, 0], mask[1] = True, False
    return mask


@BOTH
def test_matches_torch_attention(need_weights: bool) -> None:
    query, keys, values = inputs(2, 3)
    mask = torch.ones(5, 11).tril().bool() | (numbers(5, 11) > 1)
    padding = torch.arange(11) < torch.tensor([9, 4])[:, None, None, None]
    for given_mask in (None, mask, mask & padding):
        for scale in (None, 0.3):
            expected = scaled_dot_product_attention(
                query, keys, values, attn_mask=given_mask, scale=scale
            )
            output, _ = dot_product_attention(
                query, keys, values, mask=given_mask, scale=scale, need_weights=need_weights
            )
            torch.testing.assert_close(output, expected, atol=1e-12, rtol=0)


@given(seed=st.integers(0, 999), share=st.floats(0, 1))
def test_fused_and_explicit_paths_agree_in_values_and_gradients(seed: int, share: float) -> None:
    mask = torch.rand(2, 5, 11, generator=torch.Generator().manual_seed(seed)) < share
    parts = [part.requires_grad_() for part in inputs(2, dtype=torch.float32)]
    fused, _ = dot_product_attention(*parts, mask=mask)
    output, weights = dot_product_attention(*parts, mask=mask, need_weights=True)
    torch.testing.assert_close(fused, output, atol=1e-6, rtol=0)
    grad_output = numbers(2, 5, 3, seed=seed, dtype=torch.float32)
    for first, second in zip(
        torch.autograd.grad(fused, parts, grad_output),
        torch.autograd.grad(output, parts, grad_output),
        strict=True,
    ):
        assert first.isfinite().all()
        torch.testing.assert_close(first, second, atol=1e-5, rtol=0)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).float())
    assert (weights[~mask] == 0).all()


@pytest.mark.parametrize("width", [5, 7])
def test_columns_of_feature_maps_and_values_of_another_width(width: int) -> None:
    """More queries than are computed at once, as transposed views."""
    query, keys = torch.randn(2, 2, 5, 307, dtype=torch.float64, requires_grad=True).unbind()
    values = torch.randn(2, width, 307, dtype=torch.float64)
    parts = (query.mT, keys.mT, values.mT)
    fused, _ = dot_product_attention(*parts)
    explicit, _ = dot_product_attention(*parts, need_weights=True)
    torch.testing.assert_close(fused, explicit)
    slopes = (torch.autograd.grad(y.square().sum(), (query, keys)) for y in (fused, explicit))
    torch.testing.assert_close(*slopes)


@BOTH
def test_fully_masked_rows_are_zero_with_zero_gradients(need_weights: bool) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for lead in ((), (2,), (2, 3)):
            parts = [part.requires_grad_() for part in inputs(*lead, dtype=dtype)]
            output, weights = dot_product_attention(
                *parts, mask=random_mask(), need_weights=need_weights
            )
            assert (output[..., 1, :] == 0).all()
            assert weights is None or (weights[..., 1, :] == 0).all()
            slopes = torch.autograd.grad(output.float().sum(), parts)
            assert all(slope.isfinite().all() for slope in slopes)
            assert (slopes[0][..., 1, :] == 0).all()
            none = torch.zeros(1, 11).bool()
            hidden, _ = dot_product_attention(*parts, mask=none, need_weights=need_weights)
            assert (hidden == 0).all()


def test_masked_scores_may_be_nonfinite() -> None:
    mask = random_mask()
    scores = numbers(5, 11).masked_fill(~mask, torch.nan).requires_grad_()
    weights = masked_softmax(scores, mask)
    [slope] = torch.autograd.grad(weights.square().sum(), scores)
    assert weights.isfinite().all()
    assert slope.isfinite().all()
    assert (slope[~mask] == 0).all()
    clean = scores.detach().nan_to_num(0.0)
    assert torch.equal(masked_softmax(clean, mask), weights)
    torch.testing.assert_close(masked_softmax(clean), clean.softmax(-1))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_backward_produces_no_nan_and_exact_gradients() -> None:
    parts = tuple(part.requires_grad_() for part in inputs(2))
    for need_weights in (False, True):

        def attention(*tensors: Tensor, need: bool = need_weights) -> Tensor:
            return dot_product_attention(*tensors, mask=random_mask(), need_weights=need)[0]

        with torch.autograd.detect_anomaly():
            attention(*parts).sum().backward()
        assert torch.autograd.gradcheck(attention, parts, fast_mode=True)


@pytest.mark.parametrize("mask", [None, random_mask()])
def test_bias_is_added_to_the_scaled_scores(mask: Tensor | None) -> None:
    query, keys, values = inputs(2, 3)
    bias = numbers(3, 5, 11, seed=5).requires_grad_()
    fused, _ = dot_product_attention(query, keys, values, mask=mask, bias=bias)
    output, weights = dot_product_attention(
        query, keys, values, mask=mask, bias=bias, need_weights=True
    )
    torch.testing.assert_close(fused, output)
    grad_output = numbers(2, 3, 5, 3)
    gradients = [torch.autograd.grad(out, bias, grad_output)[0] for out in (fused, output)]
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(*gradients)
    if mask is None:
        expected = (query @ keys.mT / math.sqrt(7) + bias).softmax(-1)
        torch.testing.assert_close(weights, expected)


class Kernels(TorchDispatchMode):
    """Records the kernels that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 3, 5)])
def test_fused_kernel_runs_without_need_weights(lead: tuple[int, ...]) -> None:
    query, keys, _ = inputs(*lead, dtype=torch.float32)
    for shape in (None, (5, 11), (*lead, 1, 11), (*lead[-1:], 5, 11)):
        allowed = None if shape is None else torch.rand(shape) < 0.7
        with Kernels() as kernels:
            output, _ = dot_product_attention(query, keys, keys, mask=allowed)
        assert any("flash" in name or "efficient" in name for name in kernels.names)
        assert not any("softmax" in name for name in kernels.names)
        expected, _ = dot_product_attention(query, keys, keys, mask=allowed, need_weights=True)
        torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)


@BOTH
def test_half_precision_softmax_is_computed_in_float32(need_weights: bool) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        query, keys, values = inputs(2, 3, dtype=dtype)
        query, keys = 100 * query, 100 * keys  # products beyond what a half can hold
        output, weights = dot_product_attention(
            query, keys, values, scale=1e-4, need_weights=need_weights
        )
        expected, rows = dot_product_attention(
            query.double(), keys.double(), values.double(), scale=1e-4, need_weights=True
        )
        assert output.dtype == dtype
        assert rows is not None
        torch.testing.assert_close(output.double(), expected, atol=0.02, rtol=0)
        if weights is not None:
            assert weights.dtype == dtype
            torch.testing.assert_close(weights.double(), rows, atol=2**-8, rtol=0)


def test_output_has_gradients_for_the_weights() -> None:
    query, keys, values = (part.requires_grad_() for part in inputs(2))
    output, weights = dot_product_attention(query, keys, values, need_weights=True)
    assert weights is not None
    (gradient,) = torch.autograd.grad(output.sum(), weights)
    torch.testing.assert_close(gradient, values.sum(-1)[:, None].expand(2, 5, 11))
