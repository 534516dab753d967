"""Samples for evaluation, two by two, so that each has another one beside it on any process."""

from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch.utils.data import Sampler


class PairsOnce(Sampler[int]):
    """Every sample once, in order; neighbors 0 and 1, 2 and 3, and so on stay on one process.

    Where a control shows a model the image of another sample, that is the other one of its pair,
    whatever the number of processes. Batches must hold an even number of samples. Of an odd number
    of samples the last one is alone.

    Args:
        count: How many samples there are.
        rank: Which process this is.
        world: How many there are.

    Raises:
        ValueError: If a process would have nothing to do, which makes the others wait for ever.

    Example:
        >>> list(PairsOnce(7, rank=1, world=2))
        [2, 3, 6]
    """

    def __init__(self, count: int, *, rank: int = 0, world: int = 1) -> None:
        pairs = (count + 1) // 2
        if pairs < world:
            raise ValueError(
                f"each of {world} processes needs a pair of samples to evaluate, got {count} "
                "samples; use fewer processes (--trainer.devices), or more samples"
            )
        numbers = (2 * pair + one for pair in range(rank, pairs, world) for one in (0, 1))
        self.indices = [number for number in numbers if number < count]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class LengthBucketBatchSampler(Sampler[list[int]]):
    """Random batches of samples of similar length; every epoch another order, the same anywhere.

    Several batches' worth of samples are drawn at random, sorted by length and cut; the batches
    are then shuffled. With several processes each takes its share of every pool, and the tail
    that would give them different numbers of batches is dropped.

    Args:
        count: How many samples there are.
        length: The length of a sample, asked only when its turn comes.
        batch: Samples per batch and process.
        pool: Batches that are sorted together.
        seed: Of the order.
        rank: Which process this is.
        world: How many there are.

    Raises:
        ValueError: If batch or pool is below 1, or there is no whole batch for each process.

    Example:
        >>> buckets = LengthBucketBatchSampler(6, lambda index: index % 2, batch=3, pool=2, seed=0)
        >>> sorted(sorted(index % 2 for index in batch) for batch in buckets)
        [[0, 0, 0], [1, 1, 1]]
    """

    def __init__(
        self,
        count: int,
        length: Callable[[int], int],
        *,
        batch: int,
        pool: int = 16,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch < 1 or pool < 1:
            raise ValueError(f"batch and pool must be at least 1, got {batch} and {pool}")
        if count < batch * world:
            raise ValueError(
                f"{world} processes with {batch} samples each need {batch * world} samples, "
                f"got {count}; lower the batch"
            )
        self.count, self.length, self.batch, self.pool = count, length, batch, pool
        self.seed, self.rank, self.world = seed, rank, world
        self.epoch, self.first = 0, 0

    def __len__(self) -> int:
        return self.count // (self.batch * self.world)

    @property
    def sampler(self) -> Self:
        """Itself: trainers tell the epoch to what a batch sampler calls its sampler."""
        return self

    @property
    def together(self) -> int:
        """Samples per batch of all processes."""
        return self.batch * self.world

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; another one than before begins with its first batch."""
        if epoch != self.epoch:
            self.epoch, self.first = epoch, 0

    def go_on(self, epoch: int, done: int) -> None:
        """Leave out, this once, the first batches of an epoch, which were read before."""
        self.epoch, self.first = epoch, done

    def __iter__(self) -> Iterator[list[int]]:
        first, self.first = self.first, 0  # loaders ask for an order and do not read it
        yield from self._batches(self.epoch, first)

    def _batches(self, epoch: int, first: int) -> Iterator[list[int]]:
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.count, generator=random)
        order = order[: len(self) * self.together][self.rank :: self.world]
        for pool in order.split(self.batch * self.pool):
            turns = torch.randperm(len(pool) // self.batch, generator=random).tolist()
            if first < len(turns):  # else nobody asks for the lengths
                by_length = sorted(pool.tolist(), key=self.length)
                for turn in turns[first:]:
                    yield by_length[turn * self.batch : (turn + 1) * self.batch]
            first = max(0, first - len(turns))


class DistributedEvalSampler(Sampler[int]):
    """Every sample once, in order, split over processes without repeating any.

    Args:
        count: How many samples there are.
        rank: Which process this is.
        world: How many there are.

    Raises:
        ValueError: If a process would have nothing to do, which makes the others wait for ever.

    Example:
        >>> list(DistributedEvalSampler(5, rank=1, world=2))
        [1, 3]
    """

    def __init__(self, count: int, *, rank: int = 0, world: int = 1) -> None:
        if count < world:
            raise ValueError(
                f"each of {world} processes needs a sample, got {count}; use fewer processes"
            )
        self.indices = range(rank, count, world)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class EpochIndexSampler(Sampler[list[int]]):
    """Batches whose numbers say the epoch as well: sample i of epoch e is i + e · count.

    So the number alone tells a data set which image to make, in whatever process it does so.

    Args:
        order: The batches of an epoch.

    Example:
        >>> later = EpochIndexSampler(LengthBucketBatchSampler(3, lambda index: 0, batch=3))
        >>> later.set_epoch(2)
        >>> sorted(next(iter(later)))
        [6, 7, 8]
    """

    def __init__(self, order: LengthBucketBatchSampler) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    @property
    def sampler(self) -> "EpochIndexSampler":
        """Itself: trainers tell the epoch to what a batch sampler calls its sampler."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch whose order and numbers come next."""
        return self.order.epoch

    @property
    def first(self) -> int:
        """How many batches of the epoch are left out, since they were read before."""
        return self.order.first

    @property
    def together(self) -> int:
        """Samples per batch of all processes."""
        return self.order.together

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the numbers of this epoch."""
        self.order.set_epoch(epoch)

    def go_on(self, epoch: int, done: int) -> None:
        """Leave out, this once, the first batches of an epoch, which were read before."""
        self.order.go_on(epoch, done)

    def __iter__(self) -> Iterator[list[int]]:
        first = self.order.epoch * self.order.count
        for numbers in self.order:
            yield [first + number for number in numbers]
