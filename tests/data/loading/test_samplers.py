"""Who reads which sample when: nothing twice, nothing lost but the tail."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
            count, length, batch=batch, pool=pool, seed=seed, rank=rank, world=world
        )
        buckets.set_epoch(epoch)
        every.append(list(buckets))
        assert len(every[-1]) == len(buckets)
    return every


@given(sizes=SIZES, seed=st.integers(0, 99))
def test_every_sample_is_read_at_most_once_and_only_the_tail_is_not(
    sizes: tuple[int, int, int, int], seed: int
) -> None:
    count, batch, _, world = sizes
    every = shares(sizes, seed=seed)
    read = Counter(chain(*chain(*every)))
    assert set(read.values()) == {1}
    assert set(read) <= set(range(count))
    assert len(read) == count // (batch * world) * batch * world
    assert {len(mine) for mine in every} == {count // (batch * world)}
    assert {len(one) for one in chain(*every)} == {batch}


@given(sizes=SIZES, seed=st.integers(0, 99), epoch=st.integers(0, 99))
def test_an_order_is_its_seed_and_epoch(
    sizes: tuple[int, int, int, int], seed: int, epoch: int
) -> None:
    assert shares(sizes, seed=seed, epoch=epoch) == shares(sizes, seed=seed, epoch=epoch)


def test_epochs_and_seeds_bring_other_orders() -> None:
    sizes = (97, 3, 5, 2)
    orders = [shares(sizes, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    assert all(one != other for i, one in enumerate(orders) for other in orders[:i])
    left = {frozenset(range(97)) - set(chain(*chain(*order))) for order in orders}
    assert len(left) > 1  # the tail that is dropped is not always the same


def test_batches_hold_captions_of_similar_length_in_no_order() -> None:
    (mine,) = shares((1300, 10, 13, 1))
    spread = [max(map(length, batch)) - min(map(length, batch)) for batch in mine]
    assert sum(spread) / len(spread) <= 2  # of 12, when batches are drawn at random
    firsts = [length(batch[0]) for batch in mine]
    assert firsts[:13] != sorted(firsts[:13])
    assert abs(sum(firsts[:65]) / 65 - sum(firsts[65:]) / 65) < 2


def test_lengths_are_asked_only_when_their_turn_comes() -> None:
    asked: list[int] = []
    buckets = LengthBucketBatchSampler(
        1000, lambda index: asked.append(index) or 0, batch=5, pool=4
    )
    next(iter(buckets))
    assert len(asked) == 20


def test_too_few_samples_are_refused_before_anybody_waits() -> None:
    with pytest.raises(ValueError, match="3 processes with 5 samples each need 15 samples, got 14"):
        LengthBucketBatchSampler(14, length, batch=5, world=3)
    with pytest.raises(ValueError, match="each of 3 processes needs a sample, got 2"):
        DistributedEvalSampler(2, world=3)


@given(count=st.integers(1, 97), world=st.integers(1, 11))
def test_each_once_is_each_once(count: int, world: int) -> None:
    world = min(world, count)
    samplers = [DistributedEvalSampler(count, rank=rank, world=world) for rank in range(world)]
    parts = [list(one) for one in samplers]
    assert sorted(chain(*parts)) == list(range(count))
    assert [len(part) for part in parts] == list(map(len, samplers))
    assert all(part == sorted(part) for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes=SIZES, epoch=st.integers(0, 99))
def test_numbers_say_the_epoch_and_the_sample(sizes: tuple[int, int, int, int], epoch: int) -> None:
    count, batch, pool, world = sizes
    for rank, plain in enumerate(shares(sizes, epoch=epoch)):
        order = LengthBucketBatchSampler(
            count, length, batch=batch, pool=pool, rank=rank, world=world
        )
        numbered = EpochIndexSampler(order)
        numbered.set_epoch(epoch)
        assert len(numbered) == len(plain)
        told = [[divmod(number, count) for number in numbers] for numbers in numbered]
        assert told == [[(epoch, number) for number in numbers] for numbers in plain]


@given(sizes=SIZES, epoch=st.integers(0, 9), data=st.data())
def test_an_order_that_is_gone_on_with_leaves_out_what_was_read(
    sizes: tuple[int, int, int, int], epoch: int, data: st.DataObject
) -> None:
    count, batch, pool, world = sizes
    for rank, whole in enumerate(shares(sizes, epoch=epoch)):
        done = data.draw(st.integers(0, len(whole)))
        order = LengthBucketBatchSampler(
            count, length, batch=batch, pool=pool, rank=rank, world=world
        )
        order.go_on(epoch, done)
        order.set_epoch(epoch)
        assert list(order) == whole[done:]
        assert list(order) == whole  # it counts once


def test_what_was_read_is_not_asked_for_its_length() -> None:
    asked: list[int] = []
    order = LengthBucketBatchSampler(1000, lambda index: asked.append(index) or 0, batch=5, pool=4)
    order.go_on(0, 190)
    assert len(list(order)) == 10
    assert len(asked) == 60  # of the pool within which it goes on, and of two more
    order.go_on(3, 7)
    order.set_epoch(4)
    assert (order.epoch, order.first) == (4, 0)
