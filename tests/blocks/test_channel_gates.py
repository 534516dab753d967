"""Channel gates against their equations as loops over plain numbers."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.blocks.eca import eca_gate, eca_kernel_size
from visattn.blocks.gct import gct_gate
from visattn.blocks.global_context import global_context_pool, global_context_transform
from visattn.blocks.squeeze_excite import effective_se_gate
from visattn.blocks.srm import style_pool, style_scores
from visattn.functional.gates import squeeze_excitation_gate


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def close(got: Tensor, wanted: Sequence[Sequence[float]]) -> None:
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=0, atol=1e-10)


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def mapped(weight: list[list[float]], vector: list[float], bias: list[float]) -> list[float]:
    return [
        sum(w * v for w, v in zip(row, vector, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]


@pytest.mark.parametrize("biased", [True, False])
def test_squeeze_excitation_matches_the_equation(biased: bool) -> None:
    pooled, squeeze, excite = numbers(3, 7), numbers(2, 7, seed=1), numbers(7, 2, seed=2)
    b1, b2 = biased * numbers(2, seed=3), biased * numbers(7, seed=4)
    got = squeeze_excitation_gate(pooled, squeeze, excite, *((b1, b2) if biased else ()))
    wanted: list[list[float]] = []
    for row in pooled.tolist():
        hidden = [max(z, 0.0) for z in mapped(squeeze.tolist(), row, b1.tolist())]
        wanted.append([sigmoid(z) for z in mapped(excite.tolist(), hidden, b2.tolist())])
    close(got, wanted)


def test_effective_se_matches_the_equation() -> None:
    pooled, weight, bias = 3 * numbers(3, 7), numbers(7, 7, seed=1), numbers(7, seed=2)
    scores = [mapped(weight.tolist(), row, bias.tolist()) for row in pooled.tolist()]
    wanted = [[min(max(z + 3, 0.0), 6.0) / 6 for z in row] for row in scores]
    close(effective_se_gate(pooled, weight, bias), wanted)
    assert {0.0, 1.0} <= {gate for row in wanted for gate in row}  # both ends were reached


def test_eca_kernel_size_follows_the_formula() -> None:
    widths = [16, 32, 64, 128, 256, 512, 1024, 2048]
    assert [eca_kernel_size(width) for width in widths] == [3, 3, 3, 5, 5, 5, 5, 7]
    assert [eca_kernel_size(width) for width in (1, 4, 7, 8, 24)] == [1, 1, 1, 3, 3]
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        eca_kernel_size(0)


@pytest.mark.parametrize("kernel", [1, 3, 5, 9])
def test_eca_matches_the_equation(kernel: int) -> None:
    pooled, weight = numbers(3, 7), numbers(kernel, seed=1)
    wanted = [[0.0] * 7 for _ in range(3)]
    for b in range(3):
        for c in range(7):
            beside = range(c - kernel // 2, c + kernel // 2 + 1)
            score = sum(
                float(weight[k]) * float(pooled[b, at])
                for k, at in enumerate(beside)
                if 0 <= at < 7
            )
            wanted[b][c] = sigmoid(score)
    close(eca_gate(pooled, weight), wanted)


def test_even_kernel_size_is_refused() -> None:
    with pytest.raises(ValueError, match="must be odd, got 4"):
        eca_gate(torch.zeros(1, 7), torch.zeros(4))


def test_style_statistics_and_srm_match_the_equations() -> None:
    x, weight = numbers(3, 5, 7, 11), numbers(5, 2, seed=1)
    wanted = [[0.0] * 5 for _ in range(3)]
    for b in range(3):
        for c in range(5):
            places = x[b, c].flatten().tolist()
            mean = sum(places) / 77
            deviation = math.sqrt(sum((place - mean) ** 2 for place in places) / 77 + 1e-5)
            wanted[b][c] = float(weight[c, 0]) * mean + float(weight[c, 1]) * deviation
    close(style_scores(style_pool(x), weight), wanted)


def test_gct_matches_the_equation() -> None:
    norms = numbers(3, 7).abs()
    alpha, gamma, beta = (numbers(7, seed=seed) for seed in (1, 2, 3))
    wanted: list[list[float]] = []
    for row in norms.tolist():
        u = [float(a) * math.sqrt(n * n + 1e-5) for a, n in zip(alpha, row, strict=True)]
        length = math.sqrt(sum(z * z for z in u) + 7 * 1e-5)
        v = [math.sqrt(7) * z / length for z in u]
        gates = [math.tanh(float(g) * z + float(b)) for g, z, b in zip(gamma, v, beta, strict=True)]
        wanted.append([1 + gate for gate in gates])
    close(gct_gate(norms, alpha, gamma, beta), wanted)


@given(scale=st.floats(1e-1, 1e6))
def test_gct_is_scale_invariant(scale: float) -> None:
    norms, ones = 1 + numbers(3, 7).abs(), torch.ones(7, dtype=torch.float64)
    wanted = gct_gate(norms, ones, ones, ones, eps=0.0)
    got = gct_gate(scale * norms, ones, ones, ones, eps=0.0)
    torch.testing.assert_close(got, wanted)


def test_zero_channels_have_a_finite_gate() -> None:
    norms, ones = torch.zeros(2, 3, requires_grad=True), torch.ones(3)
    gate = gct_gate(norms, ones, ones, ones)
    gate.sum().backward()
    assert gate.isfinite().all()
    assert norms.grad is not None
    assert norms.grad.isfinite().all()


def test_global_context_matches_the_equation() -> None:
    x, key, bias = numbers(3, 5, 2, 7), numbers(5, seed=1), numbers(1, seed=2)
    context, weights = global_context_pool(x, key, bias)
    for b in range(3):
        places = [x[b, :, y, z].tolist() for y in range(2) for z in range(7)]
        scores = [
            sum(float(k) * v for k, v in zip(key, place, strict=True)) + float(bias)
            for place in places
        ]
        total = sum(math.exp(score) for score in scores)
        fit = [math.exp(score) / total for score in scores]
        close(weights[b], [fit])
        wanted = [sum(f * place[c] for f, place in zip(fit, places, strict=True)) for c in range(5)]
        close(context[b : b + 1], [wanted])


@given(height=st.integers(1, 5), width=st.integers(1, 7))
def test_context_of_a_constant_map_is_independent_of_its_size(height: int, width: int) -> None:
    feature = numbers(2, 5, 1, 1)
    context, weights = global_context_pool(
        feature.expand(-1, -1, height, width), numbers(5, seed=1)
    )
    torch.testing.assert_close(context, feature[:, :, 0, 0])
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, dtype=torch.float64))


@pytest.mark.parametrize("hidden", [1, 2, 3, 5])
def test_context_shift_matches_the_equation(hidden: int) -> None:
    context, squeeze, excite = numbers(3, 7), numbers(hidden, 7, seed=1), numbers(7, hidden, seed=2)
    scale, shift, b1 = (numbers(hidden, seed=seed) for seed in (3, 4, 5))
    b2 = numbers(7, seed=6)
    wanted: list[list[float]] = []
    for row in context.tolist():
        z = mapped(squeeze.tolist(), row, b1.tolist())
        if hidden >= 3:
            mean = sum(z) / hidden
            deviation = math.sqrt(sum((v - mean) ** 2 for v in z) / hidden + 1e-5)
            z = [(v - mean) / deviation for v in z]
        z = [max(v * float(s) + float(t), 0.0) for v, s, t in zip(z, scale, shift, strict=True)]
        wanted.append(mapped(excite.tolist(), z, b2.tolist()))
    close(global_context_transform(context, squeeze, excite, scale, shift, b1, b2), wanted)


def test_gradients() -> None:
    x, key = numbers(2, 3, 2, 3).requires_grad_(), numbers(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(global_context_pool, (x, key))
    norms = numbers(2, 3).abs().requires_grad_()
    vectors = [numbers(3, seed=seed).requires_grad_() for seed in (1, 2, 3)]
    assert torch.autograd.gradcheck(gct_gate, (norms, *vectors))
    assert torch.autograd.gradcheck(eca_gate, (norms, vectors[0]))
