"""Channel gates against their equations as loops over plain numbers."""

import math
from collections.abc import Sequence

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.eca import eca_kernel_size
from visattn.blocks.gct import gct_gate
from visattn.blocks.global_context import global_context_transform


def close(got: Tensor, wanted: Sequence[Sequence[float]]) -> None:
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=got.dtype), rtol=0, atol=1e-10)


def mapped(weight: list[list[float]], vector: list[float], bias: list[float]) -> list[float]:
    return [
        sum(w * v for w, v in zip(row, vector, strict=True)) + b
        for row, b in zip(weight, bias, strict=True)
    ]


def test_eca_kernel_size_follows_the_formula() -> None:
    widths = [16, 32, 64, 128, 256, 512, 1024, 2048]
    assert [eca_kernel_size(width) for width in widths] == [3, 3, 3, 5, 5, 5, 5, 7]
    assert [eca_kernel_size(width) for width in (1, 4, 7, 8, 24)] == [1, 1, 1, 3, 3]
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        eca_kernel_size(0)


def test_zero_channels_have_a_finite_gate() -> None:
    norms, ones = torch.zeros(2, 3, requires_grad=True), torch.ones(3)
    gate = gct_gate(norms, ones, ones, ones)
    gate.sum().backward()
    assert gate.isfinite().all()
    assert norms.grad is not None
    assert norms.grad.isfinite().all()


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
