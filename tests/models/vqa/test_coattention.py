"""Co-attention against its equations in plain float64 loops, and bounded scores."""

import math

import torch
from hypothesis import given, strategies as st
from random_numbers import numbers
from torch import Tensor

from visattn.functional.attention import bounded_additive_scores
from visattn.models.vqa.coattention import guided_attention, parallel_coattention

PLACES, WORDS, DIM, HIDDEN = 7, 5, 3, 11


def weights() -> dict[str, Tensor]:
    return {
        "affinity_weight": numbers(DIM, DIM, seed=1),
        "image_weight": numbers(HIDDEN, DIM, seed=2),
        "question_weight": numbers(HIDDEN, DIM, seed=3),
        "image_vector": numbers(HIDDEN, seed=4),
        "question_vector": numbers(HIDDEN, seed=5),
    }


def softmax(scores: list[float]) -> Tensor:
    total = sum(map(math.exp, scores))
    return torch.tensor([math.exp(score) / total for score in scores], dtype=torch.float64)


def naive_scores(
    own: Tensor,
    other: Tensor,
    own_w: Tensor,
    other_w: Tensor,
    vector: Tensor,
    affinity: list[list[float]],
) -> list[float]:
    """w · tanh(W x_i + sum over j of C_ij W' y_j) for each i."""
    scores = []
    for i, x in enumerate(own):
        hidden = own_w @ x
        for j, y in enumerate(other):
            hidden = hidden + affinity[i][j] * (other_w @ y)
        scores.append(float(vector @ torch.tanh(hidden)))
    return scores


def test_parallel_coattention_equals_its_equations() -> None:
    places, words, w = numbers(PLACES, DIM, seed=6), numbers(WORDS, DIM, seed=7), weights()
    affinity = [
        [math.tanh(float(word @ w["affinity_weight"] @ place)) for place in places]
        for word in words
    ]
    transposed = [list(row) for row in zip(*affinity, strict=True)]
    image = naive_scores(
        places, words, w["image_weight"], w["question_weight"], w["image_vector"], transposed
    )
    question = naive_scores(
        words, places, w["question_weight"], w["image_weight"], w["question_vector"], affinity
    )
    mask = torch.ones(1, WORDS, dtype=torch.bool)
    output = parallel_coattention(places[None], words[None], mask, **w)
    expected_image, expected_question = softmax(image), softmax(question)
    torch.testing.assert_close(output.image_weights[0], expected_image)
    torch.testing.assert_close(output.question_weights[0], expected_question)
    torch.testing.assert_close(output.image[0], expected_image @ places)
    torch.testing.assert_close(output.question[0], expected_question @ words)
    torch.testing.assert_close(output.affinity[0], torch.tensor(affinity, dtype=torch.float64))


def test_a_single_word_gets_all_attention_and_padding_has_no_effect() -> None:
    places, words, w = numbers(1, PLACES, DIM, seed=6), numbers(1, WORDS, DIM, seed=7), weights()
    single = parallel_coattention(places, words[:, :1], torch.ones(1, 1, dtype=torch.bool), **w)
    assert single.question_weights.tolist() == [[1.0]]
    # The words after the first are anything, not only zeros: the mask alone excludes them.
    mask = torch.tensor([[True, *[False] * (WORDS - 1)]])
    padded = parallel_coattention(places, words, mask, **w)
    torch.testing.assert_close(padded.image_weights, single.image_weights)
    torch.testing.assert_close(padded.question, single.question)
    assert padded.question_weights[0, 1:].tolist() == [0.0] * (WORDS - 1)
    assert not padded.affinity[0, 1:].any()


def test_guided_attention_equals_its_equation() -> None:
    features, guidance = numbers(PLACES, DIM, seed=1), numbers(DIM, seed=2)
    own, guide, vector = (
        numbers(HIDDEN, DIM, seed=3),
        numbers(HIDDEN, DIM, seed=4),
        numbers(HIDDEN, seed=5),
    )
    for given_guidance in (guidance, None):
        g = torch.zeros(DIM).double() if given_guidance is None else given_guidance
        scores = [float(vector @ torch.tanh(own @ x + guide @ g)) for x in features]
        expected = softmax(scores)
        projected = None if given_guidance is None else (guide @ guidance)[None]
        read, attention = guided_attention(
            features[None], projected, feature_weight=own, vector=vector
        )
        torch.testing.assert_close(attention[0], expected)
        torch.testing.assert_close(read[0], expected @ features)


@given(count=st.integers(2, 211), scale=st.floats(0.1, 1e4), seed=st.integers(0, 99))
def test_bounded_scores_cannot_look_sharply_and_order_the_cells_alike(
    count: int, scale: float, seed: int
) -> None:
    keys, queries = numbers(count, DIM, seed=seed), numbers(2, DIM, seed=seed + 1)
    vector, bias = scale * numbers(DIM, seed=seed + 2), numbers(1, seed=seed + 3)
    scores = bounded_additive_scores(queries.tanh(), keys.tanh(), vector, bias)
    largest = math.exp(2) / (math.exp(2) + count - 1)
    assert scores.softmax(-1).max() <= largest * (1 + 1e-9)
    # tanh saturates: among cells that differ, the order is the same for both questions.
    first, second = scores[:, :, None] - scores[:, None]
    assert not ((first > 0) & (second < 0)).any()


def test_the_bound_on_196_cells_is_reached_and_is_3_7_percent() -> None:
    keys = torch.cat((torch.ones(1, 1), -torch.ones(195, 1))).double()
    scores = bounded_additive_scores(
        torch.zeros(1, 1).double(), keys, torch.full((1,), 1e3).double(), torch.zeros(1).double()
    )
    assert round(float(scores.softmax(-1).max()), 4) == 0.0365
