"""Order of samples, their random numbers, the loader that resumes, unreadable photos."""

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.loading import (
    DistributedEvalSampler,
    EpochBatches,
    Prepared,
    StatefulDataLoader,
    mix_seed,
    per_sample_uniforms,
)
from visattn.images.reader import ImageError

WORD = 2**64


def split_mix(seed: int, count: int) -> list[int]:
    """SplitMix64 with Python's integers."""
    values = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % WORD
        value = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
        values.append(value ^ (value >> 31))
    return values


def stirred(value: int) -> int:
    return split_mix((value - 0x9E3779B97F4A7C15) % WORD, 1)[0]


def test_splitmix64_matches_published_values() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert split_mix(1234567, 3) == published
    assert [mix_seed(seed) for seed in (0, 7)] == [split_mix(seed, 1)[0] >> 1 for seed in (0, 7)]


@given(seed=st.integers(0, 2**63), numbers=st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_each_sample_has_its_own_splitmix_stream(seed: int, numbers: list[int]) -> None:
    drawn = per_sample_uniforms(seed, numbers, 5)
    for number, row in zip(numbers, drawn.tolist(), strict=True):
        start = stirred((stirred(seed) + number) % WORD)
        assert row == [(value >> 11) / 2**53 for value in split_mix(start, 5)]


@given(numbers=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_mixed_seed_depends_on_every_number(numbers: list[int]) -> None:
    seed = mix_seed(*numbers)
    assert 0 <= seed < 2**63
    for place in range(len(numbers)):
        other = [number + (index == place) for index, number in enumerate(numbers)]
        assert 10 < (seed ^ mix_seed(*other)).bit_count() < 54  # about half of the bits differ


def expected_epoch(epoch: int, rank: int, world: int, count: int = 23) -> list[list[int]]:
    """Return the batches of a process: it takes every sample after those of the others."""
    generator = torch.Generator().manual_seed(7 * 1_000_003 + epoch)
    order = [epoch * count + index for index in torch.randperm(count, generator=generator).tolist()]
    steps = count // (3 * world)
    own = order[: steps * 3 * world][rank::world]
    return [own[3 * step : 3 * (step + 1)] for step in range(steps)]


def loader(rank: int = 0, world: int = 1, workers: int = 0) -> StatefulDataLoader:
    dataset = Prepared(range(23), lambda sample, seed: (sample, seed), seed=5)
    batches = EpochBatches(23, batch_size=3, seed=7, rank=rank, num_replicas=world)
    return StatefulDataLoader(dataset, batches, collate_fn=list, num_workers=workers)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2)])
def test_order_and_seeds_follow_from_seed_epoch_and_process(
    rank: int, world: int, workers: int
) -> None:
    complete = loader(rank, world)
    for epoch in (0, 1):
        complete.epoch_sampler.set_epoch(epoch)
        expected = expected_epoch(epoch, rank, world)
        assert list(complete) == [[(i % 23, mix_seed(5, i)) for i in row] for row in expected]
    for done in range(len(expected_epoch(1, rank, world))):
        interrupted = loader(rank, world, workers=done % 2 * workers)
        interrupted.epoch_sampler.set_epoch(1)
        taken = [batch for _, batch in zip(range(done), interrupted, strict=False)]
        resumed = loader(rank, world, workers=(done + 1) % 2 * workers)
        resumed.load_state_dict(interrupted.state_dict())
        assert [*taken, *resumed] == list(complete)
        resumed.epoch_sampler.set_epoch(2)  # the next epoch begins with its first batch
        assert len(list(resumed)) == len(complete)


def test_a_changed_batch_size_or_data_set_is_said_on_resuming() -> None:
    state = loader().state_dict()
    batches = EpochBatches(31, batch_size=4)
    other = StatefulDataLoader(range(31), batches, content=7, collate_fn=list)
    with pytest.warns(UserWarning, match="uninterrupted run") as said:
        other.load_state_dict(state)
    assert [str(each.message).partition(":")[0] for each in said] == [
        "global batch size was 3 and is now 4", "num samples was 23 and is now 31",
        "the training photos have changed",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="2 processes with 12 samples each need 24 samples"):
        EpochBatches(23, batch_size=12, num_replicas=2)


def test_rare_samples_are_drawn_as_often_as_their_weights_say() -> None:
    weights = torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0])
    batches = EpochBatches(5, batch_size=5, weights=weights)
    drawn: list[int] = []
    for epoch in range(400):
        batches.set_epoch(epoch)
        [order] = batches
        drawn += [i % 5 for i in order]
    assert drawn.count(4) / len(drawn) == pytest.approx(0.5, abs=0.04)


@given(count=st.integers(2, 40), world=st.integers(1, 4), group=st.integers(1, 3))
def test_evaluation_reads_each_sample_once_and_keeps_groups_together(
    count: int, world: int, group: int
) -> None:
    options: Any = {"num_replicas": world, "group_size": group}
    if -(-count // group) < world:
        with pytest.raises(ValueError, match="use fewer processes"):
            DistributedEvalSampler(count, **options)
        return
    shares = [list(DistributedEvalSampler(count, rank=rank, **options)) for rank in range(world)]
    assert sorted(index for share in shares for index in share) == list(range(count))
    for rank, share in enumerate(shares):
        assert all(index // group % world == rank for index in share)


@given(bad=st.sets(st.integers(0, 8), min_size=1, max_size=8), index=st.integers(0, 40))
def test_the_next_photo_replaces_one_that_cannot_be_read(bad: set[int], index: int) -> None:
    def load(sample: int, seed: int) -> tuple[int, int]:
        if sample in bad:
            raise ImageError(f"{sample}.jpg: truncated")
        return sample, seed

    data = Prepared(range(9), load, seed=3, substitute=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sample, seed = data[index]
    after = (sample - index) % 9
    assert {(index + step) % 9 for step in range(after)} <= bad
    assert sample not in bad
    assert (len(said), seed) == (after, mix_seed(3, index))
    with pytest.raises(ImageError, match="truncated"):
        Prepared(range(9), load, seed=3)[min(bad)]


def test_no_photo_that_can_be_read_is_an_error() -> None:
    def load(sample: int, seed: int) -> None:
        raise ImageError(f"{sample}.jpg: truncated")

    with (
        pytest.warns(UserWarning, match="next photo"),
        pytest.raises(ImageError, match="truncated"),
    ):
        Prepared(range(9), load, seed=3, substitute=True)[2]
