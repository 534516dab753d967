"""Up, level, down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.training.optim import cosine, trapezoid

SHAPES = {
    "total": st.integers(1, 997),
    "warm": st.integers(0, 97),
    "hold": st.floats(0, 0.9),
    "last": st.floats(0, 1),
}


@given(**SHAPES)
def test_it_rises_stays_and_falls_within_zero_and_one(
    total: int, warm: int, hold: float, last: float
) -> None:
    shares = [trapezoid(s, total, warm=warm, hold=hold, last=last) for s in range(total + 3)]
    assert all(0 <= share <= 1 for share in shares)
    peak = shares.index(max(shares))
    assert shares[: peak + 1] == sorted(shares[: peak + 1])
    assert shares[peak:] == sorted(shares[peak:], reverse=True)
    if warm <= total:
        assert shares[-1] == pytest.approx(last)


@given(**SHAPES)
def test_the_level_is_full(total: int, warm: int, hold: float, last: float) -> None:
    for step in range(warm, int(hold * total) + 1):
        assert trapezoid(step, total, warm=warm, hold=hold, last=last) == pytest.approx(1)


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.25), (3, 1.0), (50, 1.0), (75, 0.55), (100, 0.1), (101, 0.1)]
)
def test_by_hand(step: int, share: float) -> None:
    assert trapezoid(step, 100, warm=4, hold=0.5, last=0.1) == pytest.approx(share)


@given(total=st.integers(1, 997), warm=st.integers(0, 97), last=st.floats(0, 1))
def test_a_cosine_rises_to_one_and_falls_to_its_last(total: int, warm: int, last: float) -> None:
    shares = [cosine(step, total, warm=warm, last=last) for step in range(total + 3)]
    peak = min(warm, total)
    assert all(0 <= share <= 1 for share in shares)
    assert shares[:peak] == sorted(shares[:peak])
    assert shares[warm : total + 1] == sorted(shares[warm : total + 1], reverse=True)
    if warm < total:
        assert shares[warm] == pytest.approx(1)
        assert shares[-1] == pytest.approx(last)
