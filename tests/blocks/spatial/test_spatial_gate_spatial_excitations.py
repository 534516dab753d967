"""Spatial excitation: equation, counts, tap."""

import pytest
import torch

from visattn.blocks.spatial.spatial_gate import SpatialSE
from visattn.recording.recorder import record


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_equation(bias: bool) -> None:
    block, x = SpatialSE(5, bias=bias).double(), torch.randn(2, 5, 3, 7).double()
    weight = block.squeeze.weight[0, :, 0, 0]
    shift = 0.0 if block.squeeze.bias is None else block.squeeze.bias
    expected = x * torch.sigmoid(torch.einsum("c,bcyx->byx", weight, x) + shift)[:, None]
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)
    assert sum(p.numel() for p in block.parameters()) == 5 + bias


def test_its_tap_shows_the_gate_of_each_place() -> None:
    block, x = SpatialSE(5), torch.rand(2, 5, 3, 7)
    with record(block) as seen:
        y = block(x)
    [gate] = seen.maps
    assert gate.kind == "gate"
    torch.testing.assert_close(x * gate.values[:, None], y)
