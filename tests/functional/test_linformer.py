"""Linformer attention: equals full attention at full rank, matches a loop at a lower one."""

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import dot_product_attention
from visattn.functional.masks import causal_mask, length_mask
from visattn.functional.reformer import linformer_attention


def parts() -> tuple[Tensor, Tensor, Tensor]:
    return numbers(2, 5, 3), numbers(2, 11, 3, seed=1), numbers(2, 11, 7, seed=2)


@pytest.mark.parametrize("need_weights", [False, True])
def test_matches_attention_to_projected_keys(need_weights: bool) -> None:
    q, k, v = parts()
    of_keys, of_values = numbers(2, 13, seed=3), numbers(2, 13, seed=4)  # 13 were the longest
    real = [11, 4]
    mask = length_mask(torch.tensor(real), 11)
    output, weights = linformer_attention(
        q, k, v, of_keys, of_values, mask=mask, need_weights=need_weights
    )
    for b in range(2):
        for n in range(5):
            scores, mixtures = [], []
            for r in range(2):
                mixed, weighted = torch.zeros(3).double(), torch.zeros(7).double()
                for m in range(real[b]):
                    mixed = mixed + of_keys[r, m] * k[b, m]
                    weighted = weighted + of_values[r, m] * v[b, m]
                mixtures.append(weighted)
                scores.append(q[b, n] @ mixed / 3**0.5)
            expected = torch.stack(scores).softmax(0)
            torch.testing.assert_close(output[b, n], expected @ torch.stack(mixtures))
            if weights is not None:
                torch.testing.assert_close(weights[b, n], expected)
    assert (weights is not None) == need_weights


def test_full_rank_equals_full_attention() -> None:
    q, k, v = parts()
    unit = torch.eye(11, dtype=torch.float64)
    for mask in (None, length_mask(torch.tensor([7, 0]), 11)):
        output, weights = linformer_attention(q, k, v, unit, mask=mask, need_weights=True)
        expected, full = dot_product_attention(q, k, v, mask=mask, need_weights=True)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(weights, full)


def test_padding_is_excluded_from_the_projection() -> None:
    q, k, v = parts()
    mask, mixtures = length_mask(torch.tensor([7, 3]), 11), numbers(5, 11)
    output, _ = linformer_attention(q, k, v, mixtures, mask=mask)
    k[0, 7:], v[0, 7:], k[1, 3:], v[1, 3:] = (1e3,) * 4
    changed, _ = linformer_attention(q, k, v, mixtures, mask=mask)
    torch.testing.assert_close(changed, output)


def test_fully_masked_rows_are_zero_with_finite_gradients() -> None:
    q, k, v = (part.requires_grad_() for part in parts())
    mask = length_mask(torch.tensor([0, 3]), 11)
    for need_weights in (False, True):
        output, weights = linformer_attention(
            q, k, v, numbers(5, 11), mask=mask, need_weights=need_weights
        )
        assert not output[0].any()
        assert weights is None or not weights[0].any()
        gradients = torch.autograd.grad(output.sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_values_agree_with_and_without_weights() -> None:
    q, k, v = (part.float() for part in parts())
    mixtures = numbers(5, 11).softmax(-1).float()
    output, none = linformer_attention(q, k, v, mixtures)
    looked, weights = linformer_attention(q, k, v, mixtures, need_weights=True)
    assert none is None
    assert weights is not None
    torch.testing.assert_close(output, looked, atol=1e-6, rtol=0)
    torch.testing.assert_close(weights @ (mixtures @ v), output)


def test_causal_masks_are_refused() -> None:
    q, k, v = parts()
    causal = causal_mask(5, 11, alignment="upper_left")
    with pytest.raises(ValueError, match=r"one row of keys, \[..., 1, 11\].* got \[5, 11\]"):
        linformer_attention(q, k, v, numbers(3, 11), mask=causal)


def test_projection_shape_must_match_the_keys() -> None:
    q, k, v = parts()
    with pytest.raises(ValueError, match=r"at most 7 keys.* got 11"):
        linformer_attention(q, k, v, numbers(3, 7))
    with pytest.raises(ValueError, match=r"the same shape, got \[3, 11\] and \[3, 13\]"):
        linformer_attention(q, k, v, numbers(3, 11), numbers(3, 13))
