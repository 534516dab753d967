"""Gated channel transformation: its equation and its identity initialization."""

import math

import pytest
import torch
from random_numbers import numbers

from visattn.blocks.gct import GCT


def test_matches_the_equation() -> None:
    block, x = GCT(5).double(), numbers(2, 5, 7, 11)
    with torch.no_grad():
        for seed, parameter in enumerate(block.parameters()):
            parameter.copy_(numbers(5, seed=seed))
    alpha, gamma, beta = (p.tolist() for p in (block.alpha, block.gamma, block.beta))
    y = block(x)
    for b in range(2):
        u = [
            alpha[c] * math.sqrt(sum(v * v for v in x[b, c].flatten().tolist()) + 1e-5)
            for c in range(5)
        ]
        across = math.sqrt(sum(v * v for v in u) / 5 + 1e-5)
        for c in range(5):
            gate = 1 + math.tanh(gamma[c] * u[c] / across + beta[c])
            torch.testing.assert_close(y[b, c], x[b, c] * gate, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_identity_initialization_is_exact(scale: float, kind: torch.dtype) -> None:
    x = (scale * torch.randn(2, 13, 5, 7)).to(kind)
    assert torch.equal(GCT(13).to(kind)(x), x)
