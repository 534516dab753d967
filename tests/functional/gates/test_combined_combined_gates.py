"""The channel gate of CBAM and the joint gate of BAM, against loops."""

import math

import pytest
import torch
from torch import Tensor

from visattn.functional.gates.combined import CombineMode, bam_gate, cbam_channel_gate


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def test_the_mean_max_gate_is_the_equation() -> None:
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


def test_the_mean_max_gate_does_not_know_where() -> None:
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


def test_both_have_the_right_slope() -> None:
    x, squeeze, excite = numbers(1, 3, 2, 2), numbers(2, 3, seed=1), numbers(3, 2, seed=2)
    inputs = tuple(tensor.requires_grad_() for tensor in (x, squeeze, excite))
    assert torch.autograd.gradcheck(cbam_channel_gate, inputs)
    channel, place = numbers(2, 3).requires_grad_(), numbers(2, 2, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(bam_gate, (channel, place))
