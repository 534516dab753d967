"""Sums, means, verdicts and random numbers do not depend on the number of processes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.training import reduce
from visattn.training.metrics import WeightedMean, chance_level, wilson_interval
from visattn.training.reduce import (
    StepGenerator,
    all_gather_union,
    all_reduce,
    all_reduce_std,
    ddp_loss_scale,
)

CPU = torch.device("cpu")
parts = st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=5), min_size=2, max_size=4)


def on_all_ranks(values: list[Tensor], compute: Callable[[Tensor], Any]) -> list[float]:
    """Return what each process computes from its part; `all_reduce` sums over all parts."""
    contributions: list[Tensor] = []

    def collect(own: Tensor, **_: Any) -> None:
        contributions.append(own.clone())

    def add_up(own: Tensor, **_: Any) -> None:
        own.copy_(torch.stack(contributions).sum(0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce, "world_size", lambda: len(values))
        patch.setattr(reduce.distributed, "all_reduce", collect)
        for part in values:
            compute(part)
        patch.setattr(reduce.distributed, "all_reduce", add_up)
        return [float(compute(part)) for part in values]


@given(parts)
def test_reductions_equal_those_of_one_process_with_all_values(values: list[list[float]]) -> None:
    tensors = [torch.tensor(part, dtype=torch.float64) for part in values]
    whole = torch.cat(tensors)
    means = on_all_ranks(tensors, lambda part: part.mean() * ddp_loss_scale(len(part), CPU))
    assert sum(means) / len(means) == pytest.approx(float(whole.mean()), abs=1e-5)
    for deviation in on_all_ranks(tensors, all_reduce_std):
        assert deviation == pytest.approx(float(whole.std()), abs=1e-5)
    totals = on_all_ranks([part.sum() for part in tensors], all_reduce)
    assert totals == pytest.approx([float(whole.sum())] * len(tensors), abs=1e-9)


def test_the_loss_scale_of_an_empty_process_is_zero() -> None:
    def scale(part: Tensor) -> Any:
        return ddp_loss_scale(len(part), CPU)

    assert on_all_ranks([torch.ones(0), torch.ones(3)], scale) == [0, 2]
    assert on_all_ranks([torch.ones(0)] * 2, scale) == [0, 0]


def test_union_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(every: list[Any], own: set[str]) -> None:
        every[:] = [{"b", "c"}, own]

    monkeypatch.setattr(reduce, "world_size", lambda: 2)
    monkeypatch.setattr(reduce.distributed, "all_gather_object", gather)
    assert all_gather_union({"b", "a"}) == ["a", "b", "c"]


@given(count=st.integers(1, 19), world=st.integers(1, 5), step=st.integers(0, 10**6))
def test_several_processes_draw_the_numbers_of_one(count: int, world: int, step: int) -> None:
    state = torch.get_rng_state()
    single = StepGenerator(3, step, CPU)
    ranks = [StepGenerator(3, step, CPU, rank=rank, world_size=world) for rank in range(world)]
    for draw in ("randn", "rand", "rand"):
        whole = getattr(single, draw)(count * world, 2, 3)
        for rank, own in enumerate(ranks):
            assert torch.equal(getattr(own, draw)(count, 2, 3), whole[rank::world])
    drawn = [StepGenerator(*of, CPU).rand(7) for of in ((0, step), (0, step + 1), (1, step))]
    assert len(torch.cat(drawn).unique()) == 21
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used


def test_a_mean_counts_from_its_reset_and_beyond_single_precision() -> None:
    mean = WeightedMean()
    mean.update(2.0**24, 2**24)
    for _ in range(1000):
        mean.update(1.0, 1)
    assert float(mean.amount) == float(mean.count) == 2**24 + 1000
    mean.reset()
    mean.update(0, 0)
    assert math.isnan(float(mean.compute()))
    reductions: Any = mean._reductions  # processes add up amounts and counts
    assert {each.__name__ for each in reductions.values()} == {"dim_zero_sum"}


# ---------------------------------------------------------------- chance level


def test_wilson_interval_solves_its_equation() -> None:
    """Each end is a true rate at a distance of 1.96 standard errors from the observed rate."""
    for rate, count in ((1 / 6, 797), (0.5, 13), (0.02, 101)):
        for end in wilson_interval(rate, count):
            distance = abs(rate - end) / np.sqrt(end * (1 - end) / count)
            assert distance == pytest.approx(1.959964, rel=1e-6)
    assert wilson_interval(0.0, 7)[0] == 0.0
    assert wilson_interval(1.0, 7)[1] == 1.0


def test_guesses_are_at_chance_and_informed_answers_are_above() -> None:
    random = np.random.default_rng(7)
    labels = random.choice(5, p=[0.4, 0.3, 0.1, 0.1, 0.1], size=(1009, 211))
    levels = [chance_level(torch.tensor(np.bincount(row, minlength=5)), "abcde") for row in labels]

    def verdicts(answers: Any) -> list[str]:
        rows = zip(levels, (answers == labels).mean(1), strict=True)
        return [level.verdict(value) for level, value in rows]

    for guesses in (np.zeros_like(labels), random.integers(5, size=labels.shape)):
        assert verdicts(guesses).count("at chance") > 0.96 * len(levels)
    informed = np.where(random.random(labels.shape) < 0.4, labels, 0)
    assert verdicts(informed).count("above chance") == len(levels)
    assert levels[0].verdict(0.01) == "below chance"


def test_the_report_of_error_rates() -> None:
    level = chance_level(torch.tensor([100, 100, 103]), ("circle", "square", "ring"))
    report = level.report({"test/error": 0.65, "test/error_random": 0.1}, errors=True)
    assert report == {
        "test/error_verdict": "at chance",
        "test/error_random_verdict": "above chance",
        "test/error_majority_baseline": pytest.approx(200 / 303, abs=1e-6),
        "chance": (
            "test/error is at chance: guessing gives 0.6667, 0.6601 by always answering 'ring'; "
            "over 303 images 0.6050 to 0.7174 with 95 % confidence"
        ),
    }
    balanced = chance_level(torch.tensor([7, 7]), ("cat", "dog")).report({"test/accuracy": 1.0})
    assert balanced["chance"].startswith("test/accuracy is above chance: guessing gives 0.5000; ")
