"""Combined, axis-wise and SimAM gates against their equations."""

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.blocks.bam import CombineMode, bam_gate
from visattn.blocks.cbam import cbam_channel_gate
from visattn.blocks.coordinate import coordinate_gate, strip_pools
from visattn.blocks.simam import simam_gate
from visattn.blocks.triplet import triplet_gate, z_pool


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def test_mean_max_gate_matches_the_equation() -> None:
    x, squeeze, excite = numbers(2, 5, 3, 7), numbers(2, 5, seed=1), numbers(5, 2, seed=2)
    squeeze_bias, excite_bias = numbers(2, seed=3), numbers(5, seed=4)
    gate = cbam_channel_gate(x, squeeze, excite, squeeze_bias, excite_bias)

    def mlp(pooled: list[float]) -> list[float]:
        hidden = [
            max(
                0.0,
                sum(float(squeeze[r, c]) * pooled[c] for c in range(5)) + float(squeeze_bias[r]),
            )
            for r in range(2)
        ]
        return [
            sum(float(excite[c, r]) * hidden[r] for r in range(2)) + float(excite_bias[c])
            for c in range(5)
        ]

    for b in range(2):
        places = [x[b, c].flatten().tolist() for c in range(5)]
        mean, largest = mlp([sum(p) / 21 for p in places]), mlp([max(p) for p in places])
        for c in range(5):
            expected = 1 / (1 + math.exp(-mean[c] - largest[c]))
            assert float(gate[b, c]) == pytest.approx(expected, abs=1e-12)


def test_mean_max_gate_is_invariant_to_permuted_positions() -> None:
    x, order = numbers(2, 5, 3, 7), torch.randperm(21)
    moved = x.flatten(2)[..., order].unflatten(2, (3, 7))
    weights = numbers(2, 5, seed=1), numbers(5, 2, seed=2)
    torch.testing.assert_close(cbam_channel_gate(moved, *weights), cbam_channel_gate(x, *weights))


@pytest.mark.parametrize(("combine", "score"), [("add", 0.5), ("mul", -3.0)])
def test_scores_are_added_or_multiplied(combine: CombineMode, score: float) -> None:
    channel, place = torch.tensor([[2.0, 0.0]]), torch.tensor([[[-1.5, 7.0, 0.0]]])
    gate = bam_gate(channel, place, combine=combine)
    assert gate.shape == (1, 2, 1, 3)
    assert float(gate[0, 0, 0, 0]) == pytest.approx(1 / (1 + math.exp(-score)))


def test_combined_gate_gradients() -> None:
    x, squeeze, excite = numbers(1, 3, 2, 2), numbers(2, 3, seed=1), numbers(3, 2, seed=2)
    inputs = tuple(tensor.requires_grad_() for tensor in (x, squeeze, excite))
    assert torch.autograd.gradcheck(cbam_channel_gate, inputs)
    channel, place = numbers(2, 3).requires_grad_(), numbers(2, 2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(bam_gate, (channel, place))


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_strip_pooling_averages_rows_and_columns() -> None:
    x = numbers(2, 3, 5, 7)
    rows, columns = strip_pools(x)
    close(rows, torch.stack([x[:, :, :, at] for at in range(7)]).sum(0) / 7)
    close(columns, torch.stack([x[:, :, at] for at in range(5)]).sum(0) / 5)


def test_z_pool_is_max_and_mean_over_its_axis() -> None:
    x = numbers(2, 3, 5, 7)
    for axis, size in ((1, 3), (2, 5), (3, 7)):
        layers = [x.select(axis, at) for at in range(size)]
        largest, total = layers[0], layers[0]
        for layer in layers[1:]:
            largest, total = torch.maximum(largest, layer), total + layer
        close(z_pool(x, axis), torch.stack((largest, total / size), 1))


def test_coordinate_and_triplet_gates_match_a_loop() -> None:
    places, rows, columns = numbers(2, 5, 7), numbers(2, 3, 5), numbers(2, 3, 7)
    coordinate, triplet = coordinate_gate(rows, columns), triplet_gate(places, rows, columns)
    for b in range(2):
        for c in range(3):
            for y in range(5):
                for x in range(7):
                    row, column = rows[b, c, y], columns[b, c, x]
                    close(coordinate[b, c, y, x], row * column)
                    close(triplet[b, c, y, x], (places[b, y, x] + row + column) / 3)


def test_axis_gate_gradients() -> None:
    rows, columns = numbers(2, 3, 2).requires_grad_(), numbers(2, 3, 3).requires_grad_()
    places = numbers(2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(coordinate_gate, (rows, columns))
    assert torch.autograd.gradcheck(triplet_gate, (places, rows, columns))
    features = numbers(2, 3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: z_pool(x, 2), features)


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


def test_smoothing_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"e_lambda must be above 0, got 0\.0"):
        simam_gate(torch.zeros(1, 1, 2, 2), e_lambda=0.0)
