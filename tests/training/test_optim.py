"""Learning-rate schedules: trapezoid and cosine."""

import pytest
from hypothesis import given, strategies as st

from visattn.training.optim import cosine, trapezoid

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


@given(**SCHEDULES)
def test_trapezoid_is_one_between_warmup_and_decay(
    total_steps: int, warmup_steps: int, decay_start: float, final_fraction: float
) -> None:
    for step in range(warmup_steps, int(decay_start * total_steps) + 1):
        factor = trapezoid(
            step,
            total_steps,
            warmup_steps=warmup_steps,
            decay_start=decay_start,
            final_fraction=final_fraction,
        )
        assert factor == pytest.approx(1)


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
