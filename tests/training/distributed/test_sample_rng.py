"""Draws that belong to a sample, not to the process that has it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.training.distributed.sample_rng import StepDraws

CPU = torch.device("cpu")


@given(count=st.integers(1, 19), world=st.integers(1, 5), step=st.integers(0, 10**6))
def test_several_processes_draw_what_one_does(count: int, world: int, step: int) -> None:
    alone = StepDraws(3, step, CPU)
    ranks = [StepDraws(3, step, CPU, rank=rank, world=world) for rank in range(world)]
    for draw in ("normals", "uniforms", "uniforms"):
        whole = getattr(alone, draw)(count * world, 2, 3)
        for rank, own in enumerate(ranks):
            assert torch.equal(getattr(own, draw)(count, 2, 3), whole[rank::world])


def test_other_steps_and_seeds_draw_other_numbers() -> None:
    drawn = [StepDraws(*of, CPU).uniforms(7) for of in ((0, 0), (0, 1), (1, 0))]
    assert len(torch.cat(drawn).unique()) == 21


def test_they_are_none_of_those_that_dropout_gets() -> None:
    state = torch.get_rng_state()
    drawn = StepDraws(0, 5, CPU).normals(4000)
    assert torch.equal(torch.get_rng_state(), state)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.06)
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)
