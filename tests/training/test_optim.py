"""OptimConfig, and its learning-rate schedules: trapezoid and cosine."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.optim import SGD

from visattn.training.optim import OptimConfig, cosine, trapezoid

SCHEDULES = {
    "total_steps": st.integers(1, 997),
    "warmup_steps": st.integers(0, 97),
    "decay_start": st.floats(0, 0.9),
    "final_fraction": st.floats(0, 1),
}


@given(**SCHEDULES)
def test_trapezoid_rises_and_falls_between_zero_and_one(
    total_steps: int, warmup_steps: int, decay_start: float, final_fraction: float
) -> None:
    factors = [
        trapezoid(
            step,
            total_steps,
            warmup_steps=warmup_steps,
            decay_start=decay_start,
            final_fraction=final_fraction,
        )
        for step in range(total_steps + 3)
    ]
    assert all(0 <= factor <= 1 for factor in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    if warmup_steps <= total_steps:
        assert factors[-1] == pytest.approx(final_fraction)


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.25), (3, 1.0), (50, 1.0), (75, 0.55), (100, 0.1), (101, 0.1)]
)
def test_trapezoid_matches_values_by_hand(step: int, factor: float) -> None:
    assert trapezoid(
        step, 100, warmup_steps=4, decay_start=0.5, final_fraction=0.1
    ) == pytest.approx(factor)


@given(
    total_steps=st.integers(1, 997),
    warmup_steps=st.integers(0, 97),
    final_fraction=st.floats(0, 1),
)
def test_cosine_rises_to_one_and_falls_to_its_final_fraction(
    total_steps: int, warmup_steps: int, final_fraction: float
) -> None:
    factors = [
        cosine(step, total_steps, warmup_steps=warmup_steps, final_fraction=final_fraction)
        for step in range(total_steps + 3)
    ]
    peak = min(warmup_steps, total_steps)
    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[:peak] == sorted(factors[:peak])
    decay = factors[warmup_steps : total_steps + 1]
    assert decay == sorted(decay, reverse=True)
    if warmup_steps < total_steps:
        assert factors[warmup_steps] == pytest.approx(1)
        assert factors[-1] == pytest.approx(final_fraction)


def test_each_schedule_of_a_config_ends_where_it_should() -> None:
    ends = {name: OptimConfig(schedule=name).factor(100, 100) for name in ("cosine", "linear")}  # pyright: ignore[reportArgumentType]
    assert ends == {"cosine": pytest.approx(0), "linear": pytest.approx(0)}
    assert OptimConfig().factor(100, 100) == pytest.approx(0.02)
    for name in ("cosine", "linear", "trapezoid"):
        config = OptimConfig(schedule=name, warmup_steps=4, final_fraction=0.3)  # pyright: ignore[reportArgumentType]
        assert config.factor(100, 100) == pytest.approx(0.3)
        assert config.factor(1, 100) == pytest.approx(0.5)
    assert OptimConfig(schedule="linear").factor(50, 100) == pytest.approx(0.5)
    assert OptimConfig(decay_start=0.5).factor(50, 100) == pytest.approx(1)


def test_groups_have_the_learning_rate_of_their_part_and_their_decay() -> None:
    encoder, head = nn.Linear(3, 5), nn.Linear(5, 2)
    encoder.weight.requires_grad = False
    parts = {"encoder": list(encoder.parameters()), "head": list(head.parameters())}
    config = OptimConfig(lambda groups: SGD(groups, lr=2.0, weight_decay=0.1), lr_mults={"head": 3})
    built = config.build(
        parts, total_steps=7, default=SGD, no_weight_decay=[encoder.bias, head.bias]
    )
    groups = [
        (group["params"], group["initial_lr"], group["weight_decay"])
        for group in built["optimizer"].param_groups
    ]
    assert groups == [([encoder.bias], 2.0, 0), ([head.weight], 6.0, 0.1), ([head.bias], 6.0, 0)]


@pytest.mark.parametrize(
    "options",
    [
        {"warmup_steps": -1}, {"decay_start": -0.1}, {"final_fraction": -0.1},
        {"final_fraction": 1.1}, {"lr_mults": {"head": -1.0}}, {"lr_mults": {"head": math.nan}},
    ],
    ids=str,
)  # fmt: skip
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        OptimConfig(**options)


def test_a_restored_state_has_the_options_of_the_config() -> None:
    parts = {"head": list(nn.Linear(3, 2).parameters())}

    def build(optimizer: Any, **options: Any) -> tuple[torch.optim.Optimizer, Any]:
        config = OptimConfig(optimizer, schedule="linear", **options)
        built = config.build(parts, total_steps=10, default=SGD)
        return built["optimizer"], built["lr_scheduler"]["scheduler"]

    sgd, schedule = build(partial(SGD, lr=1.0, momentum=0.9))
    for _ in range(4):
        sgd.step()
        schedule.step()
    states = sgd.state_dict(), schedule.state_dict()
    later, resumed = build(partial(SGD, lr=5.0, weight_decay=0.25), lr_mults={"head": 2.0})
    later.load_state_dict(states[0])
    assert later.param_groups[0]["lr"] == 0.6  # the rate of the state is for the schedule to change
    resumed.load_state_dict(states[1])
    [group] = later.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (6.0, 0.0, 0.25)
    later.step()
    resumed.step()
    assert group["lr"] == 5.0
    assert states[0]["param_groups"][0]["momentum"] == 0.9  # of the checkpoint, left as it was


def test_unknown_parts_are_refused_with_those_of_the_model() -> None:
    parts = {"encoder": [nn.Parameter(torch.zeros(1))], "head": []}
    with pytest.raises(ValueError, match="parts of the model, encoder, head; got encoders"):
        OptimConfig(lr_mults={"encoders": 0.1}).build(parts, total_steps=7, default=SGD)


def test_a_schedule_that_is_longer_than_the_run_is_remarked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {"head": [nn.Parameter(torch.zeros(1))]}
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"warmup_steps": 200}, True),
        ({"decay_start": 100}, True),
        ({"warmup_steps": 0.1}, False),
    )
    for options, remarked in cases:
        caplog.clear()
        with caplog.at_level("INFO"):
            OptimConfig(**options).build(parts, total_steps=42, default=SGD)
        assert ("but the run has 42 steps" in caplog.text) == remarked
    half = OptimConfig(warmup_steps=0.5, decay_start=30)
    assert [half.factor(step, 40) for step in (9, 19, 30)] == pytest.approx([0.5, 1.0, 1.0])
    assert half.factor(40, 40) == pytest.approx(0.02)
    assert OptimConfig(warmup_steps=2).factor(10**6, float("inf")) == 1.0
