"""Captions: packed order, losses against plain loops, sampled tokens and ends."""

import math
from typing import Any, get_args

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
    sample_captions,
)

captions = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=11)


@given(captions)
def test_words_are_in_order_of_steps_and_count_up_within_captions_and_images(
    rows: list[tuple[int, int]],
) -> None:
    rows.sort(key=lambda row: -row[0])
    lengths, images = (torch.tensor(part) for part in zip(*rows, strict=True))
    packing = pack_words(lengths, images)
    words = list(zip(packing.steps.tolist(), packing.rows.tolist(), strict=True))
    assert words == sorted(
        (step, row) for row, (length, _) in enumerate(rows) for step in range(length)
    )
    assert list(packing.counts) == packing.steps.bincount().tolist()
    assert packing.image_indices.tolist() == images[packing.rows].tolist()
    words_of_image: dict[int, int] = {}
    for image, rank in zip(packing.image_indices.tolist(), packing.ranks.tolist(), strict=True):
        assert rank == words_of_image.get(image, 0)
        words_of_image[image] = rank + 1
    assert packing.words_per_image == max(words_of_image.values())
    values = torch.arange(len(packing.rows))
    table = packing.by_image(values, 5, fill=-1)
    for image, row in enumerate(table):
        assert row[row >= 0].tolist() == values[packing.image_indices == image].tolist()
    assert torch.equal(packing.from_images(table), values)


def test_a_packing_is_returned_as_it_is() -> None:
    packing = pack_words(torch.tensor([3, 1]))
    assert pack_words(packing) is packing
    assert packing.image_indices.tolist() == packing.rows.tolist()


@pytest.mark.parametrize("lengths", [[1, 3], [3, 0], [2, 3, 3]])
def test_unsorted_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="must be in decreasing order and at least 1"):
        pack_words(torch.tensor(lengths))


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


LOGITS = torch.tensor([9.0, 0.4, -0.3, 0.1])  # word 3 stops


class Still:
    def reorder_beams(self, parents: Tensor) -> "Still":
        return self

    def select_images(self, index: Tensor) -> "Still":
        return self


def always(state: Any, token: Tensor) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    return LOGITS.expand(*token.shape, 4), state, ()


def test_uniform_numbers_determine_the_tokens_with_their_probabilities() -> None:
    """Token 1 has the first part of [0, 1), then token 2, then the stop token."""
    first, second = LOGITS[1:].softmax(0).cumsum(0)[:2].tolist()
    edges = [[0.0, first - 1e-4, first + 1e-4], [second - 1e-4, second + 1e-4, 1 - 1e-15]]
    luck = torch.tensor(edges, dtype=torch.float64)
    drawn = sample_captions(
        always, Still(), torch.zeros(2, 3).long(), end_token=3, max_length=1, banned_tokens=(0,),
        uniforms=lambda: luck,
    )  # fmt: skip
    assert drawn.tokens[..., 0].tolist() == [[1, 1, 2], [2, 3, 3]]


def test_caption_ends_at_its_stop_token() -> None:
    torch.manual_seed(1)
    drawn = sample_captions(
        always, Still(), torch.zeros(5, 7).long(), end_token=3, max_length=11, banned_tokens=(0,)
    )
    for tokens, length in zip(drawn.tokens.flatten(0, 1), drawn.lengths.flatten(), strict=True):
        said = tokens[:length].tolist()
        assert 3 not in said[:-1]
        assert said[-1] == 3 or length == 11
        assert set(tokens[length:].tolist()) <= {3}
    assert drawn.tokens.shape[-1] == int(drawn.lengths.max())


def test_each_caption_continues_from_its_own_tokens() -> None:
    """The model repeats the previous token, so the first token decides."""

    def echo(state: Still, token: Tensor) -> tuple[Tensor, Still, tuple[Tensor, ...]]:
        logits = torch.full((*token.shape, 4), -30.0)
        first = (token == 0).unsqueeze(-1)
        logits = torch.where(first, torch.tensor([-30.0, 0.0, 0.0, -30.0]), logits)
        logits = logits.scatter(-1, token.clamp(min=1).unsqueeze(-1), 0.0)
        return logits, state, ()

    torch.manual_seed(0)
    drawn = sample_captions(echo, Still(), torch.zeros(3, 5).long(), end_token=3, max_length=4)
    assert (drawn.tokens == drawn.tokens[..., :1]).all()
    assert len(drawn.tokens[..., 0].unique()) == 2
