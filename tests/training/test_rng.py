"""Random numbers of a sample do not depend on the process that has it."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.training.reduce import StepGenerator

CPU = torch.device("cpu")


@given(count=st.integers(1, 19), world=st.integers(1, 5), step=st.integers(0, 10**6))
def test_several_processes_draw_the_numbers_of_one(count: int, world: int, step: int) -> None:
    single = StepGenerator(3, step, CPU)
    ranks = [StepGenerator(3, step, CPU, rank=rank, world_size=world) for rank in range(world)]
    for draw in ("randn", "rand", "rand"):
        whole = getattr(single, draw)(count * world, 2, 3)
        for rank, own in enumerate(ranks):
            assert torch.equal(getattr(own, draw)(count, 2, 3), whole[rank::world])


def test_steps_and_seeds_draw_different_numbers() -> None:
    drawn = [StepGenerator(*of, CPU).rand(7) for of in ((0, 0), (0, 1), (1, 0))]
    assert len(torch.cat(drawn).unique()) == 21


def test_the_global_generator_is_unchanged() -> None:
    state = torch.get_rng_state()
    drawn = StepGenerator(0, 5, CPU).randn(4000)
    assert torch.equal(torch.get_rng_state(), state)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.06)
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)
