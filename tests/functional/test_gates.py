"""Spatial gates against loops, and their invariances."""

import math

import pytest
import torch
from random_numbers import numbers

from visattn.blocks.attention_gate import additive_gate
from visattn.functional.gates import (
    PoolOrder,
    cbam_spatial_gate,
    spatial_squeeze_gate,
)


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("order", ["max_mean", "mean_max"])
def test_pooled_gate_matches_the_equation(order: PoolOrder) -> None:
    x, weight = numbers(2, 3, 5, 7), numbers(1, 2, 3, 3, seed=1)
    gate = cbam_spatial_gate(x, weight, order=order)
    for b in range(2):
        for i in range(5):
            for j in range(7):
                score = 0.0
                for m in range(3):
                    for n in range(3):
                        row, column = i + m - 1, j + n - 1
                        if 0 <= row < 5 and 0 <= column < 7:
                            values = x[b, :, row, column].tolist()
                            pools = [max(values), sum(values) / 3]
                            if order == "mean_max":
                                pools.reverse()
                            score += sum(float(weight[0, p, m, n]) * pools[p] for p in range(2))
                assert float(gate[b, i, j]) == pytest.approx(sigmoid(score), abs=1e-12)


def test_normalization_precedes_the_sigmoid() -> None:
    x, weight = numbers(2, 3, 5, 7), numbers(1, 2, 3, 3, seed=1)
    plain = cbam_spatial_gate(x, weight).logit()
    torch.testing.assert_close(
        cbam_spatial_gate(x, weight, norm=lambda s: 3 * s).logit(), 3 * plain
    )


def test_projected_gate_matches_the_equation() -> None:
    x, weight, bias = numbers(2, 3, 5, 7), numbers(3, seed=1), numbers(1, seed=2)
    gate = spatial_squeeze_gate(x, weight, bias)
    for b in range(2):
        for i in range(5):
            for j in range(7):
                score = sum(float(weight[c] * x[b, c, i, j]) for c in range(3)) + float(bias)
                assert float(gate[b, i, j]) == pytest.approx(sigmoid(score), abs=1e-12)


@pytest.mark.parametrize("size", [(5, 7), (1, 1)])
def test_additive_gate_matches_the_equation(size: tuple[int, int]) -> None:
    features, signal = numbers(2, 3, 5, 7), numbers(2, 3, *size, seed=1)
    weight, bias = numbers(3, seed=2), numbers(1, seed=3)
    gate = additive_gate(features, signal, weight, bias)
    expanded = signal.expand(2, 3, 5, 7)
    for b in range(2):
        for i in range(5):
            for j in range(7):
                fits = [
                    max(0.0, float(features[b, h, i, j] + expanded[b, h, i, j])) for h in range(3)
                ]
                score = sum(float(weight[h]) * fits[h] for h in range(3)) + float(bias)
                assert float(gate[b, i, j]) == pytest.approx(sigmoid(score), abs=1e-12)
