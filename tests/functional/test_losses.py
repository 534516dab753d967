"""Caption loss, attention penalty and packed rows against plain loops."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.functional.captions import (
    AttentionLoss,
    Reduction,
    attention_supervision_loss,
    caption_loss,
    doubly_stochastic_penalty,
    pack_targets,
    pack_words,
)

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(
    lambda lengths: torch.tensor(sorted(lengths, reverse=True))
)
REDUCTIONS = pytest.mark.parametrize("reduction", ["paper", "arctic", "mean"])


def packed_indices(lengths: Tensor) -> tuple[Tensor, Tensor]:
    packing = pack_words(lengths)
    return packing.rows, packing.steps


def attention(lengths: Tensor, places: int) -> Tensor:
    random = torch.Generator().manual_seed(int(lengths.sum()))
    shape = (int(lengths.sum()), places)
    return torch.randn(*shape, generator=random, dtype=torch.float64).softmax(-1)


@REDUCTIONS
@given(lengths=LENGTHS, places=st.sampled_from([2, 3, 13]))
def test_doubly_stochastic_penalty_matches_the_paper(
    reduction: Reduction, lengths: Tensor, places: int
) -> None:
    weights, (rows, _) = attention(lengths, places), packed_indices(lengths)
    total = 0.0
    for caption in range(len(lengths)):
        for place in range(places):
            looked = sum(
                float(w[place]) for w, r in zip(weights, rows, strict=True) if r == caption
            )
            total += (1 - looked) ** 2
    count = len(lengths)
    divided = {"paper": total / count, "arctic": total / places, "mean": total / count / places}
    penalty = doubly_stochastic_penalty(weights, rows, count, reduction=reduction)
    torch.testing.assert_close(float(penalty), divided[reduction])


@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_matches_captions_computed_alone(reduction: Reduction, smoothing: float) -> None:
    lengths = torch.tensor([5, 3, 3, 1])
    rows, _ = packed_indices(lengths)
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(12, 11, generator=random, dtype=torch.float64)
    targets = torch.randint(11, (12,), generator=random)
    total = 0.0
    for caption in range(4):
        for row, right in zip(logits[rows == caption], targets[rows == caption], strict=True):
            log_probs = row - row.exp().sum().log()
            total -= float((1 - smoothing) * log_probs[right] + smoothing * log_probs.mean())
    loss = caption_loss(logits, targets, 4, reduction=reduction, label_smoothing=smoothing)
    assert float(loss) == pytest.approx(total / (12 if reduction == "mean" else 4))


def even_targets(words: int, places: int) -> Tensor:
    """Return targets that are uniform over a random part of the positions, as for boxes."""
    random = torch.Generator().manual_seed(words)
    inside = torch.rand(words, places, generator=random, dtype=torch.float64) > 0.7
    inside[:, 1] = True
    return inside / inside.sum(-1, keepdim=True)


@given(words=st.integers(1, 11), places=st.sampled_from([2, 7, 13]))
def test_attention_is_supervised_on_some_words(words: int, places: int) -> None:
    weights, targets = attention(torch.tensor([words]), places), even_targets(words, places)
    shown = torch.arange(words) % 3 != 1
    rows = [(weights[word], targets[word]) for word in range(words) if shown[word]]
    entropy = sum(-float((target * weight.log()).sum()) for weight, target in rows) / len(rows)
    mass = sum(-math.log(float(weight[target > 0].sum())) for weight, target in rows) / len(rows)
    kinds: dict[AttentionLoss, float] = {"cross_entropy": entropy, "mass": mass}
    for kind, expected in kinds.items():
        loss = attention_supervision_loss(weights, targets, shown, kind)
        assert float(loss) == pytest.approx(expected, abs=1e-9)
        half = attention_supervision_loss(weights.bfloat16(), targets.float(), shown, kind)
        assert half.dtype == torch.float32
    # Any attention inside the boxes has the whole mass.
    inside = (weights * (targets > 0)) / (weights * (targets > 0)).sum(-1, keepdim=True)
    loss = attention_supervision_loss(inside, targets, shown, "mass")
    assert float(loss) == pytest.approx(0, abs=1e-9)


def test_partly_covered_cells_count_in_part() -> None:
    weights, targets = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.6, 0.3, 0.1]])
    loss = attention_supervision_loss(weights, targets, torch.tensor([True]), "mass")
    assert float(loss) == pytest.approx(-math.log(0.75))


@pytest.mark.parametrize("kind", get_args(AttentionLoss))
def test_supervision_is_finite_when_weights_underflow_and_0_without_words(
    kind: AttentionLoss,
) -> None:
    scores = torch.tensor([[0.0, 1000.0, 0.0], [0.0, -1000.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    loss = attention_supervision_loss(scores.softmax(-1), targets, torch.ones(2).bool(), kind)
    (gradient,) = torch.autograd.grad(1e6 * loss, scores)
    assert 27 < loss.item() < 28
    assert gradient.isfinite().all()
    for words in (0, 3):
        weights = torch.full((words, 5), 0.2, requires_grad=True)
        shown = torch.zeros(words, dtype=torch.bool)
        loss = attention_supervision_loss(weights, torch.zeros(words, 5), shown, kind)
        (gradient,) = torch.autograd.grad(loss, weights)
        assert loss.item() == 0
        assert not gradient.any()


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_packed_targets_are_aligned_with_their_words(lengths: Tensor, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    table = torch.rand(len(lengths), 9, 3, generator=random)
    chosen = torch.rand(len(lengths), 9, generator=random) > 0.5
    rows, steps = chosen.nonzero(as_tuple=True)
    order = torch.randperm(len(rows), generator=random)
    rows, steps = rows[order], steps[order]
    targets, shown = pack_targets(rows, steps, table[rows, steps], lengths)
    for target, there, row, step in zip(targets, shown, *packed_indices(lengths), strict=True):
        assert there == chosen[row, step]
        assert torch.equal(target, table[row, step] if there else torch.zeros(3))
