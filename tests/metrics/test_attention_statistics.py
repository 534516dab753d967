"""Statistics of attention weights against closed forms and loops."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.metrics.attention_stats import (
    attention_entropy,
    head_diversity,
    mean_attention_distance,
    received_attention,
    saturated_fraction,
)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).mul(2).softmax(-1)


@given(st.integers(2, 13))
def test_entropy_of_rows_uniform_over_a_subset_of_the_keys(keys: int) -> None:
    for used in range(1, keys + 1):
        row = torch.zeros(1, keys, dtype=torch.float64)
        row[0, :used] = 1 / used
        assert attention_entropy(row).item() == pytest.approx(
            math.log(used) / math.log(keys), abs=1e-12
        )
        assert attention_entropy(row, max(used, 2)).item() == pytest.approx(
            float(used > 1), abs=1e-12
        )


def test_single_key_has_zero_entropy() -> None:
    assert attention_entropy(torch.ones(3, 1)).tolist() == [0, 0, 0]


def test_saturated_rows_are_counted() -> None:
    weights = torch.tensor([[[0.91, 0.09], [0.9, 0.1]], [[1.0, 0.0], [0.0, 1.0]]])
    assert saturated_fraction(weights).tolist() == [0.5, 1.0]


def test_distance_matches_a_loop() -> None:
    weights = rows(2, 3, 5, 7)
    queries, keys = torch.rand(5, 2).double(), torch.rand(7, 2).double()
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for q in range(5):
        for k in range(7):
            expected += weights[:, :, q, k] * math.dist(queries[q].tolist(), keys[k].tolist()) / 5
    assert torch.allclose(mean_attention_distance(weights, queries, keys), expected, atol=1e-12)


def test_rows_without_weight_on_patches_are_excluded() -> None:
    weights, places = (
        torch.tensor([[0.0, 0.0], [0.25, 0.25]]),
        torch.tensor([[0.0, 0.0], [0.0, 4.0]]),
    )
    assert mean_attention_distance(weights, places, places).item() == 2
    assert mean_attention_distance(0 * weights, places, places).isnan()


def test_head_diversity_is_the_mean_over_pairs_and_zero_for_a_single_head() -> None:
    weights = rows(2, 3, 5, 7)
    moved = torch.zeros(3, 3, dtype=torch.float64)
    for a in range(3):
        for b in range(3):
            moved[a, b] = (weights[:, a] - weights[:, b]).abs().sum(-1).mean() / 2
    assert torch.allclose(head_diversity(weights), moved.sum(1) / 2, atol=1e-12)
    assert head_diversity(weights[:, :1]).tolist() == [0]


def test_received_attention_sums_to_the_number_of_queries() -> None:
    weights = rows(2, 3, 5, 7)
    received = received_attention(weights)
    assert torch.allclose(received.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    mean = weights[1, 1, :, 4].sum().item() / 5
    assert received[1, 1, 4].item() == pytest.approx(mean, abs=1e-12)
