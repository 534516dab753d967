"""Luong's local alignments against loops, and windows at the ends of the keys."""

import pytest
import torch
from hypothesis import given, strategies as st
from random_numbers import numbers

from visattn.functional.luong import (
    local_alignment,
    monotonic_centers,
    predicted_centers,
    predictive_alignment,
    window_mask,
)


def test_integer_length_is_shared_by_the_batch() -> None:
    query, weight, vector = numbers(2, 5, 3), numbers(11, 3, seed=1), numbers(11, seed=2)
    shared = predicted_centers(query, weight, vector, 7)
    torch.testing.assert_close(
        shared, predicted_centers(query, weight, vector, torch.tensor([7, 7]))
    )


def test_predictive_alignment_has_gradients_for_centers() -> None:
    centers = torch.tensor([3.3, 6.8], dtype=torch.float64, requires_grad=True)
    scores = numbers(2, 11).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s, c: predictive_alignment(s, c, radius=2.5), (scores, centers)
    )


@given(center=st.floats(0, 7), radius=st.floats(1, 9))
def test_window_contains_at_least_one_key(center: float, radius: float) -> None:
    window = window_mask(torch.tensor([center]), 7, radius=radius)
    assert window.any()
    weights = local_alignment(torch.zeros(1, 7), torch.tensor([center]), radius=radius)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    faded = predictive_alignment(torch.zeros(1, 7), torch.tensor([center]), radius=radius)
    assert (faded <= weights).all()


def test_window_over_all_keys_equals_global_alignment() -> None:
    scores = numbers(5, 7)
    weights = local_alignment(scores, monotonic_centers(5), radius=7)
    torch.testing.assert_close(weights, scores.softmax(-1))


def test_window_past_the_end_is_empty() -> None:
    scores = numbers(3, 7).requires_grad_()
    weights = local_alignment(scores, monotonic_centers(3, start=7), radius=1)
    weights.sum().backward()
    assert weights.sum(-1).tolist() == [1.0, 0.0, 0.0]
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_half_precision_counts_large_positions_exactly() -> None:
    window = window_mask(torch.tensor([4000.0], dtype=torch.bfloat16), 4099, radius=3)
    assert window.nonzero()[:, 1].tolist() == list(range(3997, 4004))
    scores = torch.zeros(1, 4099, dtype=torch.bfloat16)
    weights = predictive_alignment(scores, torch.tensor([4000.0]), radius=3)
    assert weights.dtype == torch.bfloat16


def test_window_without_keys_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1 key, got 0\.5"):
        window_mask(torch.zeros(1), 5, radius=0.5)
