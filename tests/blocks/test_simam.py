"""SimAM: its gate against a loop, no parameters, and a recorded gate."""

import math
from itertools import product

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.simam import SimAM, simam_gate
from visattn.recording.recorder import record


def test_output_is_the_gated_input_also_while_recording() -> None:
    block, x = SimAM(3), torch.randn(2, 3, 5, 7)
    kept = x.clone()
    plain = block(x)
    with record(block) as recording:
        y = block(x)
    [gate] = recording.maps
    torch.testing.assert_close(y, x * gate.values, rtol=0, atol=0)
    assert torch.equal(plain, y)
    assert torch.equal(x, kept)
    assert torch.equal(block(x.requires_grad_()), y)


def test_has_no_parameters_and_the_lambda_of_the_authors() -> None:
    block = SimAM(16, e_lambda=0.1)
    assert not block.state_dict()
    x = torch.randn(2, 16, 5, 7)
    assert not torch.allclose(block(x), SimAM(16)(x))
    with pytest.raises(ValueError, match=r"e_lambda must be above 0, got -1\.0"):
        SimAM(16, e_lambda=-1.0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_output_and_gradients_are_finite(kind: torch.dtype) -> None:
    for scale, size in product((1e-4, 1.0, 1e4), ((1, 1), (56, 56))):
        x = (scale * torch.randn(1, 3, *size)).to(kind).requires_grad_()
        y = SimAM(3)(x)
        assert y.dtype == kind
        [gradient] = torch.autograd.grad(y, x, torch.ones_like(y))
        assert y.isfinite().all()
        assert gradient.isfinite().all()


def looped(x: Tensor, smoothing: float) -> Tensor:
    gates = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            places = x[b, c].flatten().tolist()
            mean = sum(places) / len(places)
            far = [(place - mean) ** 2 for place in places]
            variance = sum(far) / (len(far) - 1) if len(far) > 1 else 0.0
            scores = [d / (4 * (variance + smoothing)) + 0.5 for d in far]
            gate = [1 / (1 + math.exp(-score)) for score in scores]
            gates[b, c] = torch.tensor(gate, dtype=x.dtype).view(x.shape[2:])
    return gates


@pytest.mark.parametrize("smoothing", [1e-4, 0.1])
@pytest.mark.parametrize("size", [(5, 7), (1, 1), (1, 2)])
def test_simam_matches_the_equation_with_and_without_gradients(
    size: tuple[int, int], smoothing: float
) -> None:
    x = numbers(2, 3, *size)
    wanted, kept = looped(x, smoothing), x.clone()
    got = simam_gate(x, e_lambda=smoothing)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    assert torch.equal(x, kept)
    assert torch.equal(simam_gate(x.requires_grad_(), e_lambda=smoothing), got)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 5.0, 20.0, 400.0, 1e4])
def test_simam_in_half_precision_is_accurate_to_its_resolution(
    kind: torch.dtype, spread: float
) -> None:
    x = (spread * numbers(1, 2, 56, 57)).to(kind)
    gate = simam_gate(x)
    assert gate.dtype == kind
    digits = torch.finfo(kind).eps
    torch.testing.assert_close(gate.double(), simam_gate(x.double()), rtol=digits, atol=0)
