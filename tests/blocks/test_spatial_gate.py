"""Spatial gate of CBAM and spatial excitation: equations, parameter counts and recorded gates."""

from typing import Any

import pytest
import torch
from timm.layers.cbam import SpatialAttn
from torch.nn.functional import conv2d

from visattn.blocks.spatial_gate import SpatialGate, SpatialSE
from visattn.recording.recorder import record


def test_matches_timm_in_training_and_eval_mode() -> None:
    ours, theirs = SpatialGate(5, kernel_size=3, pool_order="mean_max"), SpatialAttn(3)
    ours.conv.weight.data = theirs.state_dict()["conv.conv.weight"].clone()
    for _ in range(2):
        x = torch.randn(2, 5, 7, 11)
        torch.testing.assert_close(ours(x), theirs(x))
    x = torch.randn(1, 5, 3, 13)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_matches_equation_without_norm() -> None:
    block, x = SpatialGate(5, norm=False).double(), torch.randn(2, 5, 7, 11).double()
    pools = torch.cat((x.max(1, keepdim=True).values, x.mean(1, keepdim=True)), 1)
    expected = x * torch.sigmoid(conv2d(pools, block.conv.weight, padding=3))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_records_gate_of_each_position() -> None:
    block, x = SpatialGate(5).eval(), torch.rand(2, 5, 7, 11)
    with record(block) as records:
        y = block(x)
    [gate] = records.maps
    assert (gate.kind, gate.site) == ("gate", "tap")
    torch.testing.assert_close(x * gate.values[:, None], y)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kernel_size": 4}, "kernel_size must be odd"), ({"kernel_size": 0}, "got 0")],
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpatialGate(5, **options)


@pytest.mark.parametrize("bias", [False, True])
def test_spatial_se_matches_equation(bias: bool) -> None:
    block, x = SpatialSE(5, bias=bias).double(), torch.randn(2, 5, 3, 7).double()
    weight = block.squeeze.weight[0, :, 0, 0]
    shift = 0.0 if block.squeeze.bias is None else block.squeeze.bias
    expected = x * torch.sigmoid(torch.einsum("c,bcyx->byx", weight, x) + shift)[:, None]
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)
    assert sum(p.numel() for p in block.parameters()) == 5 + bias


def test_spatial_se_records_gate_of_each_position() -> None:
    block, x = SpatialSE(5), torch.rand(2, 5, 3, 7)
    with record(block) as records:
        y = block(x)
    [gate] = records.maps
    assert gate.kind == "gate"
    torch.testing.assert_close(x * gate.values[:, None], y)
