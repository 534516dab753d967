"""Additive scores and the mean they weigh, against loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from visattn.functional.scores import additive_scores, attended


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def test_additive_scores_are_the_equation() -> None:
    query, keys, vector = numbers(3, 5, 7), numbers(3, 11, 7, seed=1), numbers(7, seed=2)
    scores = additive_scores(query, keys.unsqueeze(1), vector)
    assert scores.shape == (3, 5, 11)
    for b in range(3):
        for k in range(5):
            for n in range(11):
                expected = sum(
                    float(vector[d] * torch.tanh(query[b, k, d] + keys[b, n, d])) for d in range(7)
                )
                torch.testing.assert_close(float(scores[b, k, n]), expected)


@given(scale=st.floats(0.01, 100), seed=st.integers(0, 99))
def test_additive_scores_stay_within_the_vector(scale: float, seed: int) -> None:
    query, keys, vector = numbers(3, 7, seed=seed), numbers(3, 5, 7), numbers(7)
    scores = additive_scores(scale * query, scale * keys, vector)
    assert (scores.abs() <= vector.abs().sum() + 1e-12).all()


@given(order=st.permutations(range(5)))
def test_additive_scores_follow_their_keys(order: list[int]) -> None:
    query, keys, vector = numbers(3, 7), numbers(3, 5, 7), numbers(7)
    moved = additive_scores(query, keys[:, order], vector)
    torch.testing.assert_close(moved, additive_scores(query, keys, vector)[:, order])


def test_attended_is_the_weighted_mean() -> None:
    weights, values = numbers(3, 5).softmax(-1), numbers(3, 5, 7, seed=1)
    expected = torch.einsum("bn,bnd->bd", weights, values)
    torch.testing.assert_close(attended(weights, values), expected)


@given(place=st.integers(0, 4))
def test_one_hot_weights_pick_their_value(place: int) -> None:
    weights, values = torch.eye(5, dtype=torch.float64)[place], numbers(5, 7)
    assert torch.equal(attended(weights, values), values[place])


def test_both_have_the_right_slope() -> None:
    query, keys = numbers(2, 3).requires_grad_(), numbers(2, 5, 3, seed=1).requires_grad_()
    vector, values = numbers(3, seed=2).requires_grad_(), numbers(2, 5, 7).requires_grad_()
    assert torch.autograd.gradcheck(additive_scores, (query, keys, vector))
    weights = numbers(2, 5).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(attended, (weights, values))
