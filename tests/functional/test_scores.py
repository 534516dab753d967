"""Attention scores against loops over queries and keys."""

from collections.abc import Callable

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

QUERY, SAME, OTHER = numbers(2, 3, 7), numbers(2, 11, 7, seed=1), numbers(2, 11, 5, seed=2)
WEIGHT, LAYER, VECTOR = numbers(7, 5, seed=3), numbers(13, 12, seed=4), numbers(13, seed=5)


def looped(score: Callable[[Tensor, Tensor], Tensor], keys: Tensor) -> Tensor:
    rows = [
        [[score(q, k) for k in of_keys] for q in of_queries]
        for of_queries, of_keys in zip(QUERY, keys, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def test_scores_match_their_equations() -> None:
    cases: list[tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]] = [
        (dot_scores(QUERY, SAME), SAME, lambda q, k: (q * k).sum()),
        (general_scores(QUERY, OTHER, WEIGHT), OTHER, lambda q, k: q @ (WEIGHT @ k)),
        (
            concat_scores(QUERY, OTHER, LAYER, VECTOR),
            OTHER,
            lambda q, k: VECTOR @ torch.tanh(LAYER @ torch.cat((q, k))),
        ),
        (
            additive_scores(QUERY, SAME, VECTOR[:7]),
            SAME,
            lambda q, k: VECTOR[:7] @ torch.tanh(q + k),
        ),
    ]
    for scores, keys, score in cases:
        torch.testing.assert_close(scores, looped(score, keys))
    by_place = location_scores(QUERY, LAYER[:, :7], 11)
    torch.testing.assert_close(by_place, torch.einsum("bnd,md->bnm", QUERY, LAYER[:11, :7]))


def test_keys_are_shared_by_a_leading_axis_of_size_1() -> None:
    query = QUERY.expand(3, 2, 3, 7)
    for scores in (dot_scores(query, SAME), additive_scores(query, SAME[None], VECTOR[:7])):
        assert scores.shape == (3, 2, 3, 11)
        torch.testing.assert_close(scores[0], scores[2])


def test_gradients() -> None:
    query, keys = numbers(2, 1, 3).requires_grad_(), numbers(2, 5, 3, seed=1).requires_grad_()
    vector, values = numbers(3, seed=2).requires_grad_(), numbers(2, 5, 7).requires_grad_()
    assert torch.autograd.gradcheck(additive_scores, (query, keys, vector))
    weights = numbers(2, 5).softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(context_vector, (weights, values))
