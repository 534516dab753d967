"""Luong attention in all variants against loops over the equations."""

import math
from itertools import product
from typing import Any, get_args

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.luong import Alignment, LuongAttention, Score
from visattn.recording.recorder import record


def made(score: Score, align: Alignment) -> LuongAttention:
    torch.manual_seed(0)
    return LuongAttention(
        5,
        query_dim=5 if score == "dot" else 3,
        score=score,
        alignment=align,
        hidden_dim=7,
        window_radius=4,
        max_annotations=19,
    ).double()


def query_and_keys(attention: LuongAttention) -> tuple[Tensor, Tensor]:
    return numbers(2, 3, 5 if attention.score == "dot" else 3, seed=1), numbers(2, 17, 5)


LENGTHS = torch.tensor([17, 11])
FORMS = list(product(get_args(Score), get_args(Alignment)))
BARE = [("dot", "global"), ("dot", "monotonic")]


def fit(attention: LuongAttention, query: Tensor, annotation: Tensor, place: int) -> float:
    learned = attention.weights
    if attention.score == "dot":
        return float(query @ annotation)
    if attention.score == "general":
        return float(query @ learned["weight"] @ annotation)
    if attention.score == "concat":
        hidden = torch.tanh(learned["weight"] @ torch.cat((query, annotation)))
        return float(learned["vector"] @ hidden)
    return float(learned["weight"][place] @ query)


@torch.no_grad()
def looped(
    attention: LuongAttention, query: Tensor, rows: Tensor, step: int, length: int
) -> Tensor:
    near, fading = range(length), 0.0
    center = float(step)
    if attention.alignment == "predictive":
        hidden = torch.tanh(attention.weights["center_weight"] @ query)
        center = length * float((attention.weights["center_vector"] @ hidden).sigmoid())
        fading = 1 / (2 * (4 / 2) ** 2)
    if attention.alignment != "global":
        near = [s for s in range(length) if abs(s - center) <= 4]
    fits = {s: math.exp(fit(attention, query, rows[s], s)) for s in near}
    weights = torch.zeros(len(rows), dtype=torch.float64)
    for s in near:
        weights[s] = fits[s] / sum(fits.values()) * math.exp(-fading * (s - center) ** 2)
    return weights


@pytest.mark.parametrize(("score", "align"), FORMS)
def test_matches_the_equations(score: Score, align: Alignment) -> None:
    attention = made(score, align)
    query, rows = query_and_keys(attention)
    output, weights = attention(query, rows, lengths=LENGTHS, first_step=5)
    for b, length in enumerate(LENGTHS.tolist()):
        for t in range(3):
            expected = looped(attention, query[b, t], rows[b], t + 5, length)
            torch.testing.assert_close(weights[b, t], expected)
            torch.testing.assert_close(output[b, t], expected @ rows[b])


@pytest.mark.parametrize(("score", "align"), FORMS)
def test_single_steps_match_the_whole_sequence(score: Score, align: Alignment) -> None:
    attention = made(score, align)
    query, rows = query_and_keys(attention)
    output, _ = attention(query, rows)
    for t in range(3):
        step, _ = attention(query[:, t : t + 1], rows, first_step=t)
        torch.testing.assert_close(step, output[:, t : t + 1])


@pytest.mark.parametrize(("score", "align"), BARE)
def test_dot_score_has_no_parameters(score: Score, align: Alignment) -> None:
    assert list(made(score, align).parameters()) == []


def test_records_the_weights() -> None:
    attention = made("general", "global")
    query, rows = query_and_keys(attention)
    attention.tap.grid = (3, 5)
    with record(attention) as recording:
        _, weights = attention(query, rows[:, :15])
    [attention_map] = recording.maps
    assert attention_map.kind == "words"
    assert torch.equal(attention_map.values, weights.unflatten(-1, (3, 5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "cosine"}, "'general'.*got 'cosine' and 'global'"),
        ({"alignment": "local"}, "'predictive'.*got 'general' and 'local'"),
        ({"score": "dot"}, "annotation_dim 5 and query_dim 3; use score=.general"),
        ({"score": "location"}, "needs max_annotations.*got None"),
        ({"alignment": "monotonic", "window_radius": 0.5}, r"at least 1, got 0\.5"),
    ],
)
def test_invalid_options_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(
        "jaxtyping.config.jaxtyping_disable", True
    )  # without shape checks, whose message names the words too
    with pytest.raises(ValueError, match=message):
        LuongAttention(5, query_dim=3, **options)


@pytest.mark.compile
def test_compiles_as_one_graph() -> None:
    attention = made("concat", "predictive")
    query, rows = query_and_keys(attention)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    got = compiled(query, rows, lengths=LENGTHS)
    torch.testing.assert_close(got, attention(query, rows, lengths=LENGTHS))
