"""Averaged weights: the closed form, and nothing frozen moves."""

import pytest
import torch

from visattn.tasks.averages import WeightAverage, moved_average


def test_late_steps_count_as_the_closed_form_says() -> None:
    weights = torch.randn(7, dtype=torch.float64)
    average = weights[0].clone()
    for number, weight in enumerate(weights[1:]):
        average = moved_average(average, weight, 10_000 + number, decay=0.75)
    shares = torch.tensor([0.75**6, *(0.25 * 0.75 ** (6 - i) for i in range(1, 7))])
    torch.testing.assert_close(average, (weights * shares).sum(), check_dtype=False)


def test_it_follows_quickly_at_first() -> None:
    average = moved_average(torch.tensor(0.0), torch.tensor(1.0), 1, decay=0.998)
    assert float(average) > 0.8


def test_what_stays_equal_stays_equal_to_the_bit() -> None:
    weights = torch.randn(1000)
    average = weights.clone()
    for step in range(300):
        average = moved_average(average, weights, step, decay=0.998)
    assert torch.equal(average, weights)


def test_counters_are_taken_over() -> None:
    assert int(moved_average(torch.tensor(3), torch.tensor(5), 9, decay=0.9)) == 5


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must be"):
        WeightAverage(decay)
