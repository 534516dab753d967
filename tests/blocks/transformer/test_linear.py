"""Linear attention against a loop."""

from math import exp

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from visattn.blocks.transformer.token_attention import linear_attention
from visattn.functional.masks import causal_mask, length_mask


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def parts() -> tuple[Tensor, Tensor, Tensor]:
    return 2 * numbers(2, 5, 3), 2 * numbers(2, 11, 3, seed=1), numbers(2, 11, 7, seed=2)


@pytest.mark.parametrize("need_weights", [False, True])
def test_matches_the_equation(need_weights: bool) -> None:
    q, k, v = parts()
    real = [11, 4]
    mask = length_mask(torch.tensor(real), 11)
    output, weights = linear_attention(q, k, v, mask=mask, need_weights=need_weights)
    for b in range(2):
        for n in range(5):
            raw = [float((elu(q[b, n]) + 1) @ (elu(k[b, m]) + 1)) for m in range(real[b])]
            expected = sum(raw[m] / sum(raw) * v[b, m] for m in range(real[b]))
            torch.testing.assert_close(output[b, n], expected)
            if weights is not None:
                padded = torch.tensor([*raw, *[0.0] * (11 - real[b])]).double() / sum(raw)
                torch.testing.assert_close(weights[b, n], padded)
    assert (weights is not None) == need_weights


def test_values_agree_with_and_without_weights() -> None:
    q, k, v = (part.float() for part in parts())
    output, none = linear_attention(q, k, v)
    looked, weights = linear_attention(q, k, v, need_weights=True)
    assert none is None
    assert weights is not None
    torch.testing.assert_close(output, looked, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))


def test_fully_masked_rows_are_zero_with_finite_gradients() -> None:
    q, k, v = (part.requires_grad_() for part in parts())
    mask = length_mask(torch.tensor([0, 3]), 11)
    for need_weights in (False, True):
        output, weights = linear_attention(q, k, v, mask=mask, need_weights=need_weights)
        assert not output[0].any()
        assert weights is None or not weights[0].any()
        gradients = torch.autograd.grad(output.sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_gradients() -> None:
    q, k, v = (part[:1, :3].clone().requires_grad_() for part in parts())
    assert torch.autograd.gradcheck(lambda *inputs: linear_attention(*inputs)[0], (q, k, v))


def test_very_negative_features_keep_precision() -> None:
    q, k = torch.zeros(1, 1), torch.tensor([[-30.0], [-31.0]])  # elu + 1 is 0 in float32
    _, weights = linear_attention(q, k, torch.ones(2, 1), need_weights=True)
    expected = torch.tensor([[1 / (1 + exp(-1)), 1 / (1 + exp(1))]])
    torch.testing.assert_close(weights, expected)


def test_half_precision_accumulates_in_float32() -> None:
    ones = torch.ones(3000, 1, dtype=torch.float16)  # the sum of features is 6000, of values 2e5
    output, _ = linear_attention(ones, ones, 64 * ones)
    assert output.dtype == torch.float16
    assert torch.equal(output, 64 * ones)
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = (part.float() for part in parts())
        inside, _ = linear_attention(q, k, v)
    torch.testing.assert_close(inside, linear_attention(q, k, v)[0])


def test_causal_masks_are_refused() -> None:
    q, k, v = parts()
    causal = causal_mask(5, 11, alignment="upper_left")
    with pytest.raises(ValueError, match=r"linear_attention must be one row.* got \[5, 11\]"):
        linear_attention(q, k, v, mask=causal)
