"""Additive attention gates: equation, signals of all sizes, counts, errors."""

import pytest
import torch
from random_numbers import numbers
from torch.nn.functional import conv2d, interpolate

from visattn.blocks.attention_gate import AttentionGate
from visattn.recording.recorder import record


def test_matches_the_equation_with_a_signal_of_another_width_and_size() -> None:
    block, x, signal = (
        AttentionGate(6, signal_channels=5).double(),
        numbers(2, 6, 7, 11),
        numbers(2, 5, 3, 2),
    )
    gating = interpolate(signal, (7, 11), mode="bilinear", align_corners=False)
    state = block.state_dict()
    theta = torch.einsum("hc,bcyx->bhyx", state["theta.weight"][:, :, 0, 0], x)
    gating = torch.einsum("hc,bcyx->bhyx", state["phi.weight"][:, :, 0, 0], gating)
    both = torch.relu(theta + gating + state["phi.bias"][:, None, None])
    score = torch.einsum("h,bhyx->byx", state["psi.weight"][0, :, 0, 0], both)
    score = score + state["psi.bias"]
    expected = x * score.sigmoid()[:, None]
    torch.testing.assert_close(block(x, signal), expected, rtol=0, atol=1e-10)


def test_without_a_signal_the_input_is_the_gating_signal() -> None:
    block, x = AttentionGate(6), torch.randn(2, 6, 7, 11)
    torch.testing.assert_close(block(x), block(x, x))
    assert torch.equal(block(x), block.attend(x))


def test_strided_gate_is_computed_on_the_coarse_grid() -> None:
    """As in the authors' code, without the layers after the gate."""
    block, x, signal = (
        AttentionGate(6, signal_channels=5, stride=2).double(),
        numbers(2, 6, 8, 14),
        numbers(2, 5, 3, 5, seed=1),
    )
    theta = conv2d(x, block.theta.weight, stride=2)
    assert theta.shape[2:] == (4, 7)
    gating = conv2d(signal, block.phi.weight, block.phi.bias)
    gating = interpolate(gating, (4, 7), mode="bilinear", align_corners=False)
    gate = conv2d((theta + gating).relu(), block.psi.weight, block.psi.bias).sigmoid()
    gate = interpolate(gate, (8, 14), mode="bilinear", align_corners=False)
    torch.testing.assert_close(block(x, signal), x * gate, rtol=0, atol=1e-10)


def test_records_the_gate_on_the_grid_of_the_features() -> None:
    block, x = AttentionGate(6, signal_channels=5, stride=2), torch.rand(2, 6, 7, 11)
    with record(block) as recording:
        y = block(x, torch.randn(2, 5, 3, 2))
    [gate] = recording.maps
    assert gate.values.shape == (2, 7, 11)
    torch.testing.assert_close(x * gate.values[:, None], y)


def test_every_parameter_and_both_inputs_have_gradients() -> None:
    block, signal = AttentionGate(6, signal_channels=5), torch.randn(2, 5, 3, 2, requires_grad=True)
    block(torch.randn(2, 6, 7, 11), signal).square().sum().backward()
    assert signal.grad is not None
    assert signal.grad.abs().sum() > 0
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in block.parameters())


def test_mismatching_inputs_are_refused() -> None:
    x = torch.zeros(2, 6, 7, 11)
    with pytest.raises(ValueError, match=r"signal must be \[2, 5, height, width\], got \[2, 3"):
        AttentionGate(6, signal_channels=5)(x, torch.zeros(2, 3, 7, 11))
    with pytest.raises(
        ValueError, match=r"signal must be \[2, 5, .* got \[2, 6, .*signal_channels=6"
    ):
        AttentionGate(6, signal_channels=5)(x)
    with pytest.raises(ValueError, match=r"at least 3 x 3 positions.*got 2 x 11; use stride=1"):
        AttentionGate(6, stride=3)(x[:, :, :2])
    with pytest.raises(ValueError, match="at least 1, got 0 and 1"):
        AttentionGate(6, signal_channels=0)
