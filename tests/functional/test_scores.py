"""Attention scores against loops over queries and keys, their invariances and errors."""

from collections.abc import Callable

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import (
    additive_scores,
    concat_scores,
    context_vector,
    dot_scores,
    general_scores,
    location_scores,
)


def looped(score: Callable[[Tensor, Tensor], Tensor], query: Tensor, keys: Tensor) -> Tensor:
    rows = [
        [[score(q, k) for k in of_keys] for q in of_queries]
        for of_queries, of_keys in zip(query, keys, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


QUERY, SAME, OTHER = numbers(2, 3, 7), numbers(2, 11, 7, seed=1), numbers(2, 11, 5, seed=2)
WEIGHT, LAYER, VECTOR = numbers(7, 5, seed=3), numbers(13, 12, seed=4), numbers(13, seed=5)


def test_dot_scores_match_the_equation() -> None:
    def dot(q: Tensor, k: Tensor) -> Tensor:
        return (q * k).sum()

    torch.testing.assert_close(dot_scores(QUERY, SAME), looped(dot, QUERY, SAME))


def test_general_scores_match_the_equation() -> None:
    expected = looped(lambda q, k: q @ (WEIGHT @ k), QUERY, OTHER)
    torch.testing.assert_close(general_scores(QUERY, OTHER, WEIGHT), expected)


def test_concat_scores_match_the_equation() -> None:
    expected = looped(lambda q, k: VECTOR @ torch.tanh(LAYER @ torch.cat((q, k))), QUERY, OTHER)
    torch.testing.assert_close(concat_scores(QUERY, OTHER, LAYER, VECTOR), expected)


def test_additive_scores_match_the_equation() -> None:
    expected = looped(lambda q, k: VECTOR[:7] @ torch.tanh(q + k), QUERY, SAME)
    torch.testing.assert_close(additive_scores(QUERY, SAME, VECTOR[:7]), expected)


def test_location_scores_use_the_first_max_length_positions() -> None:
    scores = location_scores(QUERY, LAYER[:, :7], 11)
    assert scores.shape == (2, 3, 11)
    for n in range(11):
        torch.testing.assert_close(scores[1, 2, n], LAYER[n, :7] @ QUERY[1, 2])
    with pytest.raises(ValueError, match="rows for at most 13 keys, got 14"):
        location_scores(QUERY, LAYER[:, :7], 14)


def test_mismatching_weight_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"7 \+ 5, got 11"):
        concat_scores(QUERY, OTHER, LAYER[:, :11], VECTOR)


def test_keys_are_shared_by_a_leading_axis_of_size_1() -> None:
    query, keys = QUERY.expand(3, 2, 3, 7), SAME
    for scores in (
        dot_scores(query, keys),
        additive_scores(query, keys.unsqueeze(0), VECTOR[:7]),
    ):
        assert scores.shape == (3, 2, 3, 11)
        torch.testing.assert_close(scores[0], scores[2])


def test_gradients() -> None:
    query, keys = numbers(2, 1, 3).requires_grad_(), numbers(2, 5, 3, seed=1).requires_grad_()
    vector, values = numbers(3, seed=2).requires_grad_(), numbers(2, 5, 7).requires_grad_()
    assert torch.autograd.gradcheck(additive_scores, (query, keys, vector))
    weights = numbers(2, 5).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(context_vector, (weights, values))
