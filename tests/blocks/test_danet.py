"""Dual attention against loops."""

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.danet import DANet, channel_affinity


def among_places(block: DANet, x: Tensor) -> Tensor:
    """Return the output of position attention for a single image, before its gain."""
    state = dict(block.named_parameters())
    wq, wk, wv = (state[f"{name}.weight"][:, :, 0, 0] for name in ("query", "key", "value"))
    flat = x.flatten(1)
    queries = [wq @ place + state["query.bias"] for place in flat.T]
    offered = [wk @ place + state["key.bias"] for place in flat.T]
    values = [wv @ place + state["value.bias"] for place in flat.T]
    added = []
    for query in queries:
        weights = torch.stack([query @ other for other in offered]).softmax(0)
        added.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(added, -1).view_as(x)


def among_channels(x: Tensor, *, official: bool) -> Tensor:
    added = []
    for channel in x:
        scores = torch.stack([(channel * other).sum() for other in x])
        weights = (scores.max() - scores if official else scores).softmax(0)
        added.append(sum(weight * other for weight, other in zip(weights, x, strict=True)))
    return torch.stack(added)


@pytest.mark.parametrize("official", [False, True])
def test_matches_the_sum_of_position_and_channel_attention(official: bool) -> None:
    block = DANet(8, reduction=4, invert_channel_affinity=official).double()
    x = numbers(2, 8, 3, 5) / 4
    with torch.no_grad():
        block.position_gain.fill_(0.7)
        block.channel_gain.fill_(-1.3)
    y = block(x)
    for b in range(2):
        expected = x[b] + 0.7 * among_places(block, x[b])
        expected = expected - 1.3 * among_channels(x[b], official=official)
        torch.testing.assert_close(y[b], expected)


def test_channel_attention_in_half_precision_does_not_overflow_over_many_positions() -> None:
    loud = 6 * numbers(1, 3, 4000).half()  # sums of squares of 144 000, float16 ends at 65 504
    weights = channel_affinity(loud)
    assert weights.dtype == torch.float16
    assert torch.equal(weights[0], torch.eye(3, dtype=torch.float16))
    with torch.autocast("cpu", torch.bfloat16):
        soft = numbers(1, 3, 4000).float() / 40
        torch.testing.assert_close(channel_affinity(soft), channel_affinity(soft.double()).float())
