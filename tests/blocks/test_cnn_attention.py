"""Criss-cross, double and channel attention against loops in float64."""

from math import exp

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.blocks.criss_cross import criss_cross_attention
from visattn.blocks.danet import channel_affinity
from visattn.blocks.double_attention import double_attention


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (1, 7), (5, 1), (1, 1)])
def test_criss_cross_is_a_softmax_over_row_and_column(height: int, width: int) -> None:
    q, k, v = (numbers(2, c, height, width, seed=c) for c in (2, 2, 3))
    output, weights = criss_cross_attention(q, k, v, need_weights=True)
    assert weights is not None
    shaped = weights.unflatten(2, (height, width)).unflatten(1, (height, width))
    for b in range(2):
        for y in range(height):
            for x in range(width):
                lines = [(u, w) for u in range(height) for w in range(width) if u == y or w == x]
                assert len(lines) == height + width - 1  # itself once
                raw = [exp(q[b, :, y, x] @ k[b, :, u, w]) for u, w in lines]
                expected = torch.zeros(height, width, dtype=torch.float64)
                for (u, w), score in zip(lines, raw, strict=True):
                    expected[u, w] = score / sum(raw)
                torch.testing.assert_close(shaped[b, y, x], expected)
                weighted_sum = sum(expected[u, w] * v[b, :, u, w] for u, w in lines)
                torch.testing.assert_close(output[b, :, y, x], weighted_sum)


def test_criss_cross_values_agree_with_and_without_weights() -> None:
    q, k, v = (numbers(2, c, 7, 11, seed=c).float() for c in (3, 3, 5))
    output, none = criss_cross_attention(q, k, v)
    looked, weights = criss_cross_attention(q, k, v, need_weights=True)
    assert none is None
    assert weights is not None
    assert torch.equal(output, looked)
    torch.testing.assert_close((weights @ v.flatten(2).mT).mT.unflatten(2, (7, 11)), output)


def test_criss_cross_gradients() -> None:
    q, k, v = (numbers(1, c, 2, 3, seed=c).requires_grad_() for c in (2, 2, 3))
    assert torch.autograd.gradcheck(lambda *parts: criss_cross_attention(*parts)[0], (q, k, v))


def test_double_attention_matches_the_equation() -> None:
    features, gather, distribute = numbers(2, 5, 11), numbers(2, 3, 11, seed=1), numbers(2, 3, 11)
    output, (gathering, distributing) = double_attention(features, gather, distribute)
    for b in range(2):
        descriptors = []
        for k in range(3):
            raw = [exp(gather[b, k, n]) for n in range(11)]
            mean = sum(raw[n] / sum(raw) * features[b, :, n] for n in range(11))
            torch.testing.assert_close(gathering[b, k], torch.tensor(raw).double() / sum(raw))
            descriptors.append(mean)
        for n in range(11):
            raw = [exp(distribute[b, k, n]) for k in range(3)]
            expected = sum(raw[k] / sum(raw) * descriptors[k] for k in range(3))
            torch.testing.assert_close(output[b, :, n], expected)
            picked = torch.tensor(raw).double() / sum(raw)
            torch.testing.assert_close(distributing[b, :, n], picked)


def test_images_of_a_batch_are_independent() -> None:
    parts = numbers(3, 5, 7), numbers(3, 2, 7, seed=1), numbers(3, 2, 7, seed=2)
    together, _ = double_attention(*parts)
    alone, _ = double_attention(*(part[1:2] for part in parts))
    torch.testing.assert_close(together[1:2], alone)


@pytest.mark.parametrize("inverted", [False, True])
def test_channel_attention_is_a_softmax_of_products(inverted: bool) -> None:
    features = numbers(2, 5, 7) / 3
    weights = channel_affinity(features, inverted=inverted)
    for b in range(2):
        for c in range(5):
            scores = [float(features[b, c] @ features[b, other]) for other in range(5)]
            if inverted:  # as it is written in the released code
                scores = [max(scores) - score for score in scores]
            raw = [exp(score) for score in scores]
            expected = torch.tensor(raw, dtype=torch.float64) / sum(raw)
            torch.testing.assert_close(weights[b, c], expected)


@given(seed=st.integers(0, 99))
def test_equal_channels_have_the_largest_weights(seed: int) -> None:
    features = numbers(1, 4, 13, seed=seed)
    features = features / features.norm(dim=-1, keepdim=True)
    features[:, 3] = features[:, 0]
    weights = channel_affinity(features)[0]
    torch.testing.assert_close(weights[0, 3], weights[0, 0])
    assert (weights[0, 3] >= weights[0]).all()
    assert (channel_affinity(features, inverted=True)[0, 0, 3] <= weights[0, 3]).all()


def test_half_precision_does_not_overflow_over_many_positions() -> None:
    loud = 6 * numbers(1, 3, 4000).half()  # sums of squares of 144 000, float16 ends at 65 504
    weights = channel_affinity(loud)
    assert weights.dtype == torch.float16
    assert torch.equal(weights[0], torch.eye(3, dtype=torch.float16))
    with torch.autocast("cpu", torch.bfloat16):
        soft = numbers(1, 3, 4000).float() / 40
        torch.testing.assert_close(channel_affinity(soft), channel_affinity(soft.double()).float())
