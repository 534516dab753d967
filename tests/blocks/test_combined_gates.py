"""Combined, axis-wise and SimAM gates against their equations."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.blocks.cbam import cbam_channel_gate
from visattn.blocks.simam import simam_gate


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def test_mean_max_gate_is_invariant_to_permuted_positions() -> None:
    x, order = numbers(2, 5, 3, 7), torch.randperm(21)
    moved = x.flatten(2)[..., order].unflatten(2, (3, 7))
    weights = numbers(2, 5, seed=1), numbers(5, 2, seed=2)
    torch.testing.assert_close(cbam_channel_gate(moved, *weights), cbam_channel_gate(x, *weights))


LEAST = 1 / (1 + math.exp(-0.5))


def looped(x: Tensor, smoothing: float) -> Tensor:
    gates = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            places = x[b, c].flatten().tolist()
            mean = sum(places) / len(places)
            far = [(place - mean) ** 2 for place in places]
            variance = sum(far) / (len(far) - 1) if len(far) > 1 else 0.0
            scores = [d / (4 * (variance + smoothing)) + 0.5 for d in far]
            gate = torch.tensor([1 / (1 + math.exp(-score)) for score in scores])
            gates[b, c] = gate.view(x.shape[2:])
    return gates


@pytest.fixture(autouse=True)
def _exact_lists() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield None
    torch.set_default_dtype(before)


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


@given(exponent=st.floats(-4, 4), offset=st.sampled_from([0.0, 1.0, -300.0]))
def test_simam_is_in_range_at_all_scales(exponent: float, offset: float) -> None:
    x = (10**exponent * (numbers(2, 3, 5, 7) + offset)).float()
    gate = simam_gate(x)
    assert gate.dtype == torch.float32
    assert ((gate >= LEAST - 1e-6) & (gate <= 1)).all()


@given(seed=st.integers(0, 99))
def test_simam_is_permutation_equivariant(seed: int) -> None:
    x = numbers(2, 3, 5, 7)
    random = torch.Generator().manual_seed(seed)
    places, channels = torch.randperm(35, generator=random), torch.randperm(3, generator=random)
    moved = x.flatten(2)[:, channels][:, :, places].view_as(x)
    wanted = simam_gate(x).flatten(2)[:, channels][:, :, places].view_as(x)
    torch.testing.assert_close(simam_gate(moved), wanted, rtol=0, atol=1e-12)


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


def test_single_position_has_the_gate_of_the_mean() -> None:
    x = torch.tensor([[[[7.0]]]], requires_grad=True)
    gate = simam_gate(x)
    gate.sum().backward()
    assert gate.tolist() == [[[[pytest.approx(LEAST)]]]]
    assert x.grad is not None
    assert x.grad.tolist() == [[[[0.0]]]]


def test_simam_gradients() -> None:
    x = numbers(2, 3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(simam_gate, x)
    assert torch.autograd.gradgradcheck(simam_gate, x)
