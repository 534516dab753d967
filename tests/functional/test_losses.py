"""Caption loss, attention penalty and packed rows against plain loops."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.functional.captions import (
    Reduction,
    attention_mass_loss,
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


@given(lengths=LENGTHS)
def test_packed_rows_match_torch(lengths: Tensor) -> None:
    rows, steps = packed_indices(lengths)
    table = torch.arange(len(lengths) * 7).view(len(lengths), 7)
    packed = torch.nn.utils.rnn.pack_padded_sequence(table, lengths, batch_first=True)
    assert torch.equal(table[rows, steps], packed.data)


@pytest.mark.parametrize("lengths", [[1, 2], [3, 0], [2, 3, 3]])
def test_packed_rows_require_descending_lengths(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="must be in decreasing order and at least 1"):
        packed_indices(torch.tensor(lengths))


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
def test_penalty_gradients(reduction: Reduction) -> None:
    rows, _ = packed_indices(torch.tensor([3, 2]))
    weights = attention(torch.tensor([3, 2]), 7).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: doubly_stochastic_penalty(w, rows, 2, reduction=reduction), weights
    )


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


def test_loss_gradients() -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 2, 1, 1, 0])
    assert torch.autograd.gradcheck(
        lambda x: caption_loss(x, targets, 2, label_smoothing=0.1), logits
    )


def even_targets(words: int, places: int) -> Tensor:
    """Return targets that are uniform over a random part of the positions, as for boxes."""
    random = torch.Generator().manual_seed(words)
    inside = torch.rand(words, places, generator=random, dtype=torch.float64) > 0.7
    inside[:, 1] = True
    return inside / inside.sum(-1, keepdim=True)


@given(words=st.integers(1, 11), places=st.sampled_from([2, 7, 13]))
def test_attention_supervision_is_the_mean_cross_entropy_of_supervised_words(
    words: int, places: int
) -> None:
    weights, targets = attention(torch.tensor([words]), places), even_targets(words, places)
    shown = torch.arange(words) % 3 != 1
    total, count = 0.0, 0
    for word in range(words):
        if shown[word]:
            count += 1
            for place in range(places):
                total -= float(targets[word, place] * weights[word, place].log())
    loss = attention_supervision_loss(weights, targets, shown)
    assert float(loss) == pytest.approx(total / count, abs=1e-9)
    single = attention_supervision_loss(weights.float(), targets.float(), shown)
    assert float(single) == pytest.approx(total / count, rel=1e-5, abs=1e-6)


@given(words=st.integers(1, 11), places=st.sampled_from([2, 7, 13]))
def test_mass_supervision_is_the_log_of_the_mass_inside(words: int, places: int) -> None:
    weights, targets = attention(torch.tensor([words]), places), even_targets(words, places)
    shown = torch.arange(words) % 3 != 1
    masses = [
        sum(float(weights[word, place]) for place in range(places) if targets[word, place])
        for word in range(words)
        if shown[word]
    ]
    loss = attention_mass_loss(weights, targets, shown)
    assert float(loss) == pytest.approx(-sum(map(math.log, masses)) / len(masses), abs=1e-9)
    # Any attention inside the boxes costs nothing, and partly covered cells count in part.
    inside = (weights * (targets > 0)) / (weights * (targets > 0)).sum(-1, keepdim=True)
    assert float(attention_mass_loss(inside, targets, shown)) == pytest.approx(0, abs=1e-9)
    assert float(attention_mass_loss(weights, torch.zeros_like(targets), ~shown & False)) == 0
    partly = attention_mass_loss(
        torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([True])
    )
    assert float(partly) == pytest.approx(-math.log(0.75))


@pytest.mark.parametrize("supervision", [attention_supervision_loss, attention_mass_loss])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_attention_supervision_is_finite_when_weights_underflow(
    scale: float, supervision: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    scores = torch.tensor([[0.0, 1000.0, 0.0], [0.0, -1000.0, 0.0]], requires_grad=True)
    targets = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
    loss = supervision(scores.softmax(-1), targets, torch.tensor([True, True]))
    (loss * scale).backward()
    assert 0 < loss.item() < 28
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("words", [0, 3])
def test_attention_supervision_of_no_word_is_zero(words: int) -> None:
    weights = torch.full((words, 5), 0.2, requires_grad=True)
    shown = torch.zeros(words, dtype=torch.bool)
    loss = attention_supervision_loss(weights, torch.rand(words, 5), shown)
    loss.backward()
    assert loss.item() == 0
    assert weights.grad is not None
    assert not weights.grad.any()


def test_attention_supervision_is_computed_in_float32() -> None:
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16)
    loss = attention_supervision_loss(weights, torch.tensor([[0.0, 1.0]]), torch.tensor([True]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(27.631, abs=1e-3)


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


def test_packed_targets_without_words_are_empty() -> None:
    empty = torch.zeros(0, dtype=torch.long)
    targets, shown = pack_targets(empty, empty, torch.zeros(0, 5), torch.tensor([3, 2]))
    assert targets.shape == (5, 5)
    assert not shown.any()
