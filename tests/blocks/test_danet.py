"""Dual attention against loops."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.danet import DANet


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


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


def test_equal_channels_have_the_largest_weights() -> None:
    captured: list[Tensor] = []
    for official in (False, True):
        block, x = DANet(3, invert_channel_affinity=official), numbers(1, 3, 5, 7).float() / 5
        x[:, 2] = x[:, 0]
        block.channel_tap.register_forward_hook(lambda _, __, weights: captured.append(weights[0]))
        block(x)
    assert captured[0][0, 2] > captured[0][0, 1]
    assert (
        captured[1][0, 2] < captured[1][0, 1]
    )  # as in the released code: dissimilar channels weigh most


@pytest.mark.parametrize(("channels", "reduction"), [(64, 8), (512, 8), (17, 4), (1, 8)])
def test_parameter_count_matches_the_formula(channels: int, reduction: int) -> None:
    hidden = max(1, channels // reduction)
    block = DANet(channels, reduction=reduction)
    counted = sum(parameter.numel() for parameter in block.parameters())
    assert counted == 2 * (channels * hidden + hidden) + channels**2 + channels + 2


def test_new_block_is_the_identity() -> None:
    x = numbers(2, 8, 3, 5).float()
    assert torch.equal(DANet(8)(x), x)
