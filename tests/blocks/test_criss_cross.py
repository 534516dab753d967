"""Criss-cross attention against a loop."""

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.criss_cross import CrissCrossAttention


def once(block: CrissCrossAttention, x: Tensor) -> Tensor:
    """Return the output of a single iteration for a single image."""
    state = dict(block.named_parameters())
    wq, wk, wv = (state[f"{name}.weight"][:, :, 0, 0] for name in ("query", "key", "value"))
    height, width = x.shape[1:]
    y = x.clone()
    for row in range(height):
        for column in range(width):
            cross = {(row, other) for other in range(width)}
            cross |= {(other, column) for other in range(height)}
            places = sorted(cross)
            query = wq @ x[:, row, column] + state["query.bias"]
            scores = [query @ (wk @ x[:, *place] + state["key.bias"]) for place in places]
            weights = torch.stack(scores).softmax(0)
            for weight, place in zip(weights, places, strict=True):
                value = wv @ x[:, *place] + state["value.bias"]
                y[:, row, column] += block.gain * weight * value
    return y


@pytest.mark.parametrize("recurrence", [1, 2, 3])
def test_matches_the_equation_applied_recurrently(recurrence: int) -> None:
    block, x = CrissCrossAttention(8, recurrence=recurrence).double(), numbers(2, 8, 3, 5)
    with torch.no_grad():
        block.gain.fill_(0.7)
        y = block(x)
        for b in range(2):
            expected = x[b]
            for _ in range(recurrence):
                expected = once(block, expected)
            torch.testing.assert_close(y[b], expected)


@pytest.mark.parametrize(("recurrence", "meet"), [(1, False), (2, True)])
def test_two_iterations_connect_all_positions(recurrence: int, meet: bool) -> None:
    block = CrissCrossAttention(8, recurrence=recurrence).double()
    torch.nn.init.ones_(block.gain)
    x = numbers(1, 8, 3, 5).requires_grad_()
    [gradient] = torch.autograd.grad(block(x)[0, :, 0, 0].sum(), x)
    assert bool(gradient[0, :, 2, 4].any()) == meet


def test_records_a_map_per_iteration() -> None:
    block, captured = CrissCrossAttention(8), []
    block.tap.register_forward_hook(lambda _, __, weights: captured.append(weights))
    block(numbers(2, 8, 3, 5).float())
    assert [tuple(weights.shape) for weights in captured] == [(2, 15, 15)] * 2
    assert ((captured[0] > 0).sum(-1) == 3 + 5 - 1).all()


def test_number_of_iterations_must_be_positive() -> None:
    with pytest.raises(ValueError, match="recurrence must be at least 1, got 0"):
        CrissCrossAttention(8, recurrence=0)
