"""Loss, penalty and the order of packed words, against plain loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from visattn.functional.captions import (
    Reduction,
    caption_loss,
    doubly_stochastic_penalty,
    packed_rows,
)

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=5).map(
    lambda lengths: torch.tensor(sorted(lengths, reverse=True))
)
REDUCTIONS = pytest.mark.parametrize("reduction", ["paper", "arctic", "mean"])


def attention(lengths: Tensor, places: int) -> Tensor:
    random = torch.Generator().manual_seed(int(lengths.sum()))
    shape = (int(lengths.sum()), places)
    return torch.randn(*shape, generator=random, dtype=torch.float64).softmax(-1)


@given(lengths=LENGTHS)
def test_packed_rows_visit_every_word_step_by_step(lengths: Tensor) -> None:
    rows, steps = (part.tolist() for part in packed_rows(lengths))
    visited = list(zip(steps, rows, strict=True))
    assert visited == sorted(visited)
    assert set(visited) == {(s, r) for r, n in enumerate(lengths.tolist()) for s in range(n)}
    assert len(visited) == int(lengths.sum())


@given(lengths=LENGTHS)
def test_packed_rows_are_those_of_torch(lengths: Tensor) -> None:
    rows, steps = packed_rows(lengths)
    table = torch.arange(len(lengths) * 7).view(len(lengths), 7)
    packed = torch.nn.utils.rnn.pack_padded_sequence(table, lengths, batch_first=True)
    assert torch.equal(table[rows, steps], packed.data)


@pytest.mark.parametrize("lengths", [[1, 2], [3, 0], [2, 3, 3]])
def test_packed_rows_need_falling_lengths(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="must fall and be at least 1"):
        packed_rows(torch.tensor(lengths))


@REDUCTIONS
@given(lengths=LENGTHS, places=st.sampled_from([2, 3, 13]))
def test_penalty_is_the_papers_sum(reduction: Reduction, lengths: Tensor, places: int) -> None:
    weights, (rows, _) = attention(lengths, places), packed_rows(lengths)
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


def test_even_attention_has_the_floor_of_its_lengths() -> None:
    weights = torch.full((12, 196), 1 / 196, dtype=torch.float64)
    rows = torch.zeros(12, dtype=torch.long)
    penalty = doubly_stochastic_penalty(weights, rows, 1, reduction="mean")
    assert float(penalty) == pytest.approx((1 - 12 / 196) ** 2)
    assert round(float(penalty), 4) == 0.8813


def test_penalty_is_floor_plus_variance() -> None:
    weights = attention(torch.tensor([11]), 17)
    looked = weights.sum(0)
    penalty = doubly_stochastic_penalty(weights, torch.zeros(11).long(), 1, reduction="mean")
    expected = (1 - 11 / 17) ** 2 + looked.var(correction=0)
    torch.testing.assert_close(penalty, expected)


@REDUCTIONS
def test_penalty_has_the_right_slope(reduction: Reduction) -> None:
    rows, _ = packed_rows(torch.tensor([3, 2]))
    weights = attention(torch.tensor([3, 2]), 7).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w: doubly_stochastic_penalty(w, rows, 2, reduction=reduction), weights
    )


@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_that_of_each_caption_read_alone(reduction: Reduction, smoothing: float) -> None:
    lengths = torch.tensor([5, 3, 3, 1])
    rows, _ = packed_rows(lengths)
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(12, 11, generator=random, dtype=torch.float64)
    targets = torch.randint(11, (12,), generator=random)
    total = 0.0
    for caption in range(4):
        for row, right in zip(logits[rows == caption], targets[rows == caption], strict=True):
            spoken = row - row.exp().sum().log()
            total -= float((1 - smoothing) * spoken[right] + smoothing * spoken.mean())
    loss = caption_loss(logits, targets, 4, reduction=reduction, smoothing=smoothing)
    assert float(loss) == pytest.approx(total / (12 if reduction == "mean" else 4))


def test_loss_has_the_right_slope() -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([0, 2, 1, 1, 0])
    assert torch.autograd.gradcheck(lambda x: caption_loss(x, targets, 2, smoothing=0.1), logits)
