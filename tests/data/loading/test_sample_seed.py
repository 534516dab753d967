"""Per-sample random numbers: reproducible, uniform and independent."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.loading.samplers import mix_seed, per_sample_uniforms

WORD = 2**64


def split_mix(state: int, count: int) -> list[int]:
    """SplitMix64 with Python integers: the next outputs of a generator in this state."""
    values: list[int] = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WORD
        value = state
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
        values.append(value ^ (value >> 31))
    return values


def stirred(value: int) -> int:
    """The SplitMix64 finalizer without a step of the state."""
    return split_mix((value - 0x9E3779B97F4A7C15) % WORD, 1)[0]


def test_splitmix64_matches_published_values() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert split_mix(1234567, 3) == published


@given(seed=st.integers(0, 2**63), number=st.integers(0, 2**63 - 1))
def test_each_sample_has_its_own_splitmix_stream(seed: int, number: int) -> None:
    start = stirred((stirred(seed) + number) % WORD)
    exact = [(value >> 11) / 2**53 for value in split_mix(start, 5)]
    assert per_sample_uniforms(seed, [number], 5)[0].tolist() == exact


@given(
    numbers=st.lists(st.integers(0, 10**9), min_size=1, max_size=7),
    seed=st.integers(0, 99),
    count=st.integers(0, 5),
)
def test_numbers_of_a_sample_are_independent_of_the_batch(
    numbers: list[int], seed: int, count: int
) -> None:
    together = per_sample_uniforms(seed, numbers, count)
    assert together.shape == (len(numbers), count)
    for number, drawn in zip(numbers, together, strict=True):
        assert torch.equal(per_sample_uniforms(seed, [number], count + 2)[0, :count], drawn)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    drawn = per_sample_uniforms(3, range(20_000), 4)
    later = per_sample_uniforms(4, range(20_000), 4)
    assert bool(((drawn >= 0) & (drawn < 1)).all())
    assert (drawn.mean(0) - 1 / 2).abs().max() < 4 * (1 / 12 / 20_000) ** 0.5
    together = torch.cat(
        [drawn, later, drawn.roll(1, 0)], 1
    )  # for seeds, neighboring indices and steps
    correlations = together.T.corrcoef() - torch.eye(12)
    assert correlations.abs().max() < 4.5 / 20_000**0.5


@pytest.mark.parametrize(("seed", "number"), [(-1, 3), (3, -1)])
def test_negative_seeds_and_indices_are_refused(seed: int, number: int) -> None:
    with pytest.raises(ValueError, match="seed and indices must be at least 0, got seed"):
        per_sample_uniforms(seed, [5, number], 2)


@given(numbers=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_mixed_seed_depends_on_every_number(numbers: list[int]) -> None:
    seed = mix_seed(*numbers)
    assert 0 <= seed < 2**63
    assert seed == mix_seed(*numbers)
    for place in range(len(numbers)):
        other = [number + (index == place) for index, number in enumerate(numbers)]
        changed = seed ^ mix_seed(*other)
        assert 10 < changed.bit_count() < 54  # about half of the bits differ


def test_mixed_seed_matches_splitmix() -> None:
    assert [mix_seed(seed) for seed in (0, 7)] == [split_mix(seed, 1)[0] >> 1 for seed in (0, 7)]


def test_seeds_steps_and_ranks_have_different_seeds() -> None:
    every = {
        mix_seed(seed, step, rank) % 2**32  # torch's generator on the CPU reads no more
        for seed in range(5)
        for step in range(997)
        for rank in range(3)
    }
    assert len(every) >= 5 * 997 * 3 - 1
