"""CBAM's spatial gate: its equation, its counts, timm's, and what its tap shows."""

from typing import Any

import pytest
import torch
from timm.layers.cbam import SpatialAttn
from torch.nn.functional import conv2d

from visattn.blocks.spatial.spatial_gate import SpatialGate
from visattn.recording.recorder import record


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("channels", [1, 8, 64])
def test_counts_are_the_closed_form(channels: int) -> None:
    assert count(SpatialGate(channels)) == 2 * 49 + 2
    assert count(SpatialGate(channels, kernel=3, norm=False)) == 2 * 9


def test_it_is_timms_in_training_and_in_use() -> None:
    ours, theirs = SpatialGate(5, kernel=3, order="mean_max"), SpatialAttn(3)
    ours.conv.weight.data = theirs.state_dict()["conv.conv.weight"].clone()
    for _ in range(2):
        x = torch.randn(2, 5, 7, 11)
        torch.testing.assert_close(ours(x), theirs(x))
    x = torch.randn(1, 5, 3, 13)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_it_is_the_papers_equation_without_the_norm() -> None:
    block, x = SpatialGate(5, norm=False).double(), torch.randn(2, 5, 7, 11).double()
    pools = torch.cat((x.max(1, keepdim=True).values, x.mean(1, keepdim=True)), 1)
    expected = x * torch.sigmoid(conv2d(pools, block.conv.weight, padding=3))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_its_tap_shows_the_gate_of_each_place() -> None:
    block, x = SpatialGate(5).eval(), torch.rand(2, 5, 7, 11)
    with record(block) as seen:
        y = block(x)
    [gate] = seen.maps
    assert (gate.kind, gate.site) == ("gate", "tap")
    torch.testing.assert_close(x * gate.values[:, None], y)


@pytest.mark.parametrize(
    ("options", "said"), [({"kernel": 4}, "kernel must be odd"), ({"kernel": 0}, "got 0")]
)
def test_what_it_cannot_be_is_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SpatialGate(5, **options)
