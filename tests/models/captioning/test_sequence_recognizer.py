"""Sequence recognizer: score functions and windows of columns by hand, stepping, geometry."""

from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import pytest
import torch
from random_numbers import numbers
from torch import Tensor, nn

from visattn.models.base import SmallEncoder
from visattn.models.captioning.sequence_recognizer import (
    Alignment,
    AttentionScore,
    SequenceRecognizer,
)
from visattn.results.kinds import SPECIAL_TOKENS, START

ROWS, COLUMNS = 2, 7
FORMS = list(product(get_args(AttentionScore), get_args(Alignment)))


def recognizer(score: AttentionScore, alignment: Alignment, **options: Any) -> SequenceRecognizer:
    torch.manual_seed(1)
    model = SequenceRecognizer(
        (*SPECIAL_TOKENS, *"0123456"),
        SmallEncoder((8 * ROWS, 8 * COLUMNS), channels=12),
        score=score,
        alignment=alignment,
        embed_dim=5,
        hidden_size=12 if score == "dot" else 11,
        attention_dim=3,
        window_radius=1.5,
        window_step=2.5,
        **options,
    ).double()
    if alignment == "predictive":  # starts at 0, where every window is in the middle
        attention: Any = model.decoder.attention
        nn.init.normal_(attention.center_vector, std=2.0)
    return model.eval()


def scores_by_hand(attention: Any, hidden: Tensor, annotations: Tensor) -> Tensor:
    learned: dict[str, Any] = dict(attention.scorer.named_parameters())
    weight: Any = learned.get("weights.weight")
    forms: dict[str, Callable[[Tensor, int], Tensor]] = {
        "additive": lambda a, _: (
            learned["vector"]
            @ torch.tanh(
                learned["query.weight"] @ hidden + learned["key.weight"] @ a + learned["key.bias"]
            )
        ),
        "concat": lambda a, _: (
            learned["weights.vector"] @ torch.tanh(weight @ torch.cat((hidden, a)))
        ),
        "general": lambda a, _: hidden @ weight @ a,
        "dot": lambda a, _: hidden @ a,
        "location": lambda _, place: hidden @ weight[place],
    }
    form = forms[getattr(attention.scorer, "score", "additive")]
    return torch.stack([form(a, place) for place, a in enumerate(annotations)])


def attention_by_hand(attention: Any, hidden: Tensor, annotations: Tensor, step: int) -> Tensor:
    """Return unnormalized weights over columns: equations 7 to 10 of Luong et al."""
    columns, center = torch.arange(ROWS * COLUMNS) % COLUMNS, 0.0
    if attention.alignment == "monotonic":
        center = min(2.5 * step, COLUMNS - 1)
    if attention.alignment == "predictive":
        inner = torch.tanh(attention.center_hidden.weight @ hidden)
        center = (COLUMNS - 1) * float((attention.center_vector @ inner).sigmoid())
    near = (columns - center).abs() <= (99 if attention.alignment == "global" else 1.5)
    weights = scores_by_hand(attention, hidden, annotations).exp() * near
    weights = weights / weights.sum()
    if attention.alignment == "predictive":
        weights = weights * torch.exp(-((columns - center) ** 2) / (2 * 0.75**2))
    return weights


@torch.no_grad()
@pytest.mark.parametrize(("score", "alignment"), FORMS)
def test_attention_is_that_of_the_equations_step_by_step(
    score: AttentionScore, alignment: Alignment
) -> None:
    model = recognizer(score, alignment)
    attention: Any = model.decoder.attention
    state = model.start(numbers(2, 12, ROWS, COLUMNS))
    for step, token in enumerate((START, 5, 6, 4)):
        expected = [
            attention_by_hand(attention, state.hidden[b, 0], state.features[b], step)
            for b in range(2)
        ]
        context, step_attention = attention(state)
        for b, weights in enumerate(expected):
            gate = weights.sum()
            torch.testing.assert_close(step_attention.gate[b, 0], gate)
            torch.testing.assert_close(step_attention.weights[b, 0], weights / gate)
            torch.testing.assert_close(context[b, 0], weights @ state.features[b])
            assert torch.equal(step_attention.weights[b, 0] == 0, weights == 0)
        assert (expected[0] == 0).any() == (alignment != "global")
        _, state, _ = model.step(state, torch.full((2, 1), token))
