"""Linear attention against a loop."""

from math import exp

import torch
from random_numbers import numbers
from torch import Tensor
from torch.nn.functional import elu

from visattn.blocks.transformer.token_attention import linear_attention, linear_attention_weights


def parts() -> tuple[Tensor, Tensor, Tensor]:
    return 2 * numbers(2, 5, 3), 2 * numbers(2, 11, 3, seed=1), numbers(2, 11, 7, seed=2)


def test_matches_the_equation() -> None:
    q, k, v = parts()
    output = linear_attention(q, k, v)
    weights = linear_attention_weights(q, k)
    for b in range(2):
        for n in range(5):
            raw = [float((elu(q[b, n]) + 1) @ (elu(k[b, m]) + 1)) for m in range(11)]
            expected = sum(raw[m] / sum(raw) * v[b, m] for m in range(11))
            torch.testing.assert_close(output[b, n], expected)
            torch.testing.assert_close(weights[b, n], torch.tensor(raw).double() / sum(raw))


def test_gradients() -> None:
    q, k, v = (part[:1, :3].clone().requires_grad_() for part in parts())
    assert torch.autograd.gradcheck(linear_attention, (q, k, v))


def test_very_negative_features_keep_precision() -> None:
    q, k = torch.zeros(1, 1), torch.tensor([[-30.0], [-31.0]])  # elu + 1 is 0 in float32
    expected = torch.tensor([[1 / (1 + exp(-1)), 1 / (1 + exp(1))]])
    torch.testing.assert_close(linear_attention_weights(q, k), expected)
    torch.testing.assert_close(linear_attention(q, k, torch.eye(2)), expected)


def test_half_precision_accumulates_in_float32() -> None:
    ones = torch.ones(3000, 1, dtype=torch.float16)  # the sum of features is 6000, of values 2e5
    output = linear_attention(ones, ones, 64 * ones)
    assert output.dtype == torch.float16
    assert torch.equal(output, 64 * ones)
    with torch.autocast("cpu", torch.bfloat16):
        q, k, v = (part.float() for part in parts())
        inside = linear_attention(q, k, v)
    torch.testing.assert_close(inside, linear_attention(q, k, v))
