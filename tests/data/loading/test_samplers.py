"""Samplers: no repeats, nothing dropped but the tail, exact resume, exact evaluation."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, strategies as st

from visattn.data.loading.samplers import (
    DistributedEvalSampler,
    EpochIndexSampler,
    LengthBucketBatchSampler,
)

SIZES = st.tuples(
    st.integers(1, 131), st.integers(1, 7), st.integers(1, 5), st.integers(1, 5)
).filter(lambda sizes: sizes[0] >= sizes[1] * sizes[3])


def length(index: int) -> int:
    return index * 7919 % 13


def shares(
    sizes: tuple[int, int, int, int], *, seed: int = 0, epoch: int = 0
) -> list[list[list[int]]]:
    """The batches of each process."""
    count, batch, pool, world = sizes
    every = []
    for rank in range(world):
        buckets = LengthBucketBatchSampler(
            count,
            length,
            batch_size=batch,
            batches_per_pool=pool,
            seed=seed,
            rank=rank,
            num_replicas=world,
        )
        buckets.set_epoch(epoch)
        every.append(list(buckets))
        assert len(every[-1]) == len(buckets)
    return every


@given(sizes=SIZES, seed=st.integers(0, 99))
def test_every_sample_but_the_tail_is_read_once(
    sizes: tuple[int, int, int, int], seed: int
) -> None:
    count, batch, _, world = sizes
    every = shares(sizes, seed=seed)
    read = Counter(chain(*chain(*every)))
    assert set(read.values()) == {1}
    assert set(read) <= set(range(count))
    assert len(read) == count // (batch * world) * batch * world
    assert {len(mine) for mine in every} == {count // (batch * world)}
    assert {len(part) for part in chain(*every)} == {batch}


@given(sizes=SIZES, seed=st.integers(0, 99), epoch=st.integers(0, 99))
def test_order_is_reproducible(sizes: tuple[int, int, int, int], seed: int, epoch: int) -> None:
    assert shares(sizes, seed=seed, epoch=epoch) == shares(sizes, seed=seed, epoch=epoch)


def test_order_differs_by_epoch_and_seed() -> None:
    sizes = (97, 3, 5, 2)
    orders = [shares(sizes, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    assert all(order != other for i, order in enumerate(orders) for other in orders[:i])
    left = {frozenset(range(97)) - set(chain(*chain(*order))) for order in orders}
    assert len(left) > 1  # the dropped tail varies


def test_batches_group_similar_lengths_in_random_order() -> None:
    (mine,) = shares((1300, 10, 13, 1))
    spread = [max(map(length, batch)) - min(map(length, batch)) for batch in mine]
    assert sum(spread) / len(spread) <= 2  # of 12, when batches are drawn at random
    firsts = [length(batch[0]) for batch in mine]
    assert firsts[:13] != sorted(firsts[:13])
    assert abs(sum(firsts[:65]) / 65 - sum(firsts[65:]) / 65) < 2


def test_lengths_are_read_lazily() -> None:
    lengths_read: list[int] = []
    buckets = LengthBucketBatchSampler(
        1000, lambda index: lengths_read.append(index) or 0, batch_size=5, batches_per_pool=4
    )
    next(iter(buckets))
    assert len(lengths_read) == 20


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 processes with 5 samples each need 15 samples, got 14"):
        LengthBucketBatchSampler(14, length, batch_size=5, num_replicas=3)
    with pytest.raises(ValueError, match="each of 3 processes needs a sample to evaluate, got 2"):
        DistributedEvalSampler(2, num_replicas=3)


@given(count=st.integers(1, 97), world=st.integers(1, 11))
def test_eval_sampler_covers_each_sample_once(count: int, world: int) -> None:
    world = min(world, count)
    samplers = [
        DistributedEvalSampler(count, rank=rank, num_replicas=world) for rank in range(world)
    ]
    parts = [list(sampler) for sampler in samplers]
    assert sorted(chain(*parts)) == list(range(count))
    assert [len(part) for part in parts] == list(map(len, samplers))
    assert all(part == sorted(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes=SIZES, epoch=st.integers(0, 99))
def test_indices_encode_epoch_and_sample(sizes: tuple[int, int, int, int], epoch: int) -> None:
    count, batch, pool, world = sizes
    for rank, plain in enumerate(shares(sizes, epoch=epoch)):
        order = LengthBucketBatchSampler(
            count, length, batch_size=batch, batches_per_pool=pool, rank=rank, num_replicas=world
        )
        numbered = EpochIndexSampler(order)
        numbered.set_epoch(epoch)
        assert len(numbered) == len(plain)
        decoded = [[divmod(number, count) for number in numbers] for numbers in numbered]
        assert decoded == [[(epoch, number) for number in numbers] for numbers in plain]


@given(sizes=SIZES, epoch=st.integers(0, 9), data=st.data())
def test_resumed_epoch_skips_done_batches(
    sizes: tuple[int, int, int, int], epoch: int, data: st.DataObject
) -> None:
    count, batch, pool, world = sizes
    for rank, whole in enumerate(shares(sizes, epoch=epoch)):
        done = data.draw(st.integers(0, len(whole)))
        order = LengthBucketBatchSampler(
            count, length, batch_size=batch, batches_per_pool=pool, rank=rank, num_replicas=world
        )
        order.resume(epoch, done)
        order.set_epoch(epoch)
        assert list(order) == whole[done:]
        assert list(order) == whole  # it counts once


def test_skipped_pools_need_no_lengths() -> None:
    lengths_read: list[int] = []
    order = LengthBucketBatchSampler(
        1000, lambda index: lengths_read.append(index) or 0, batch_size=5, batches_per_pool=4
    )
    order.resume(0, 190)
    assert len(list(order)) == 10
    assert len(lengths_read) == 60  # of the pool within which it goes on, and of two more
    order.resume(3, 7)
    order.set_epoch(4)
    assert (order.epoch, order.start_batch) == (4, 0)


@given(count=st.integers(1, 97), world=st.integers(1, 7))
def test_eval_sampler_keeps_pairs_together(count: int, world: int) -> None:
    if (count + 1) // 2 < world:
        with pytest.raises(ValueError, match=f"each of {world} processes needs a group of 2"):
            DistributedEvalSampler(count, rank=0, num_replicas=world, group_size=2)
        return
    parts = [
        list(DistributedEvalSampler(count, rank=rank, num_replicas=world, group_size=2))
        for rank in range(world)
    ]
    assert sorted(number for part in parts for number in part) == list(range(count))
    for rank, part in enumerate(parts):
        assert len(part) == len(
            DistributedEvalSampler(count, rank=rank, num_replicas=world, group_size=2)
        )
        for place, number in enumerate(part):
            assert number % 2 == place % 2
            if place % 2:
                assert part[place - 1] == number - 1
