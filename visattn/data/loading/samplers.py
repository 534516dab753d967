"""Samplers: length buckets, epochs, exact distributed evaluation, random numbers of a sample."""

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor
from torch.utils.data import Sampler

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, made odd
_MASK_64 = 2**64 - 1


def mix_seed(*numbers: int) -> int:
    """Return a seed, 0 to 2^63 - 1, derived from several integers in their order.

    It is the same on every machine and in every process, unlike Python's `hash`.

    Example:
        >>> mix_seed(3, 5) == mix_seed(3, 5), mix_seed(3, 5) == mix_seed(5, 3)
        (True, False)

    Source:
        The mixing constants of SplitMix64: Steele, Lea, Flood 2014, section 4.
    """
    state = 0
    for number in numbers:
        state = (state + number + int(_GOLDEN_GAMMA)) & _MASK_64
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK_64
        state ^= state >> 31
    return state >> 1


def per_sample_uniforms(
    seed: int, indices: Sequence[int], count: int
) -> Float[Tensor, "n {count}"]:
    """Return `count` float64 random numbers for each sample, uniform in [0, 1).

    They depend on the seed and the index of the sample alone: not on its batch, on the worker
    process, or on earlier draws. There is no generator state to save. Indices are below 2^63.

    Raises:
        ValueError: If the seed or an index is negative.

    Example:
        >>> uniforms = per_sample_uniforms(0, [7, 3], 2)
        >>> bool((uniforms[1] == per_sample_uniforms(0, [3, 5, 11], 2)[0]).all())
        True

    Source:
        Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", section 4 and
        the mixing constants of SplitMix64. Each sample has its own stream, whose start is mixed
        from the seed and the index.
    """
    if seed < 0 or min(indices, default=0) < 0:
        raise ValueError(
            f"seed and indices must be at least 0, got seed {seed}, smallest index "
            f"{min(indices, default=0)}"
        )
    start = _mix_bits(_mix_bits(np.array([seed], np.uint64)) + np.array(indices, np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN_GAMMA
    bits = _mix_bits(start[:, None] + steps)
    # A float64 holds 53 bits: the upper ones of 64 give multiples of 2^-53, never rounded up to 1.
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix_bits(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Apply the finalizer of SplitMix64: each output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class LengthBucketBatchSampler(Sampler[list[int]]):
    """Random batches of samples of similar length, in a new reproducible order each epoch.

    Several batches' worth of samples are drawn at random, sorted by length and cut into batches;
    the batches are then shuffled. With several processes each takes its part of every pool. The
    tail that would give the processes different numbers of batches is dropped.

    Args:
        num_samples: Size of the dataset.
        length: Returns the length of a sample; called only when its pool is reached.
        batch_size: Samples per batch and process.
        batches_per_pool: Number of batches that are sorted together.
        seed: Seed of the order.
        rank: Rank of this process.
        num_replicas: Number of processes.

    Raises:
        ValueError: If `batch_size` or `batches_per_pool` is below 1, or there is no whole batch
            for each process.

    Example:
        >>> batches = LengthBucketBatchSampler(
        ...     6, lambda index: index % 2, batch_size=3, batches_per_pool=2, seed=0
        ... )
        >>> sorted(sorted(index % 2 for index in batch) for batch in batches)
        [[0, 0, 0], [1, 1, 1]]
    """

    def __init__(
        self,
        num_samples: int,
        length: Callable[[int], int],
        *,
        batch_size: int,
        batches_per_pool: int = 16,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
    ) -> None:
        if batch_size < 1 or batches_per_pool < 1:
            raise ValueError(
                "batch_size and batches_per_pool must be at least 1, got "
                f"{batch_size} and {batches_per_pool}"
            )
        if num_samples < batch_size * num_replicas:
            raise ValueError(
                f"{num_replicas} processes with {batch_size} samples each need "
                f"{batch_size * num_replicas} samples, got {num_samples}; lower the batch size"
            )
        self.num_samples = num_samples
        self.length = length
        self.batch_size = batch_size
        self.batches_per_pool = batches_per_pool
        self.seed = seed
        self.rank = rank
        self.num_replicas = num_replicas
        self.epoch = 0
        self.start_batch = 0

    def __len__(self) -> int:
        return self.num_samples // self.global_batch_size

    @property
    def sampler(self) -> Self:
        """The sampler itself: Lightning calls `set_epoch` on the `sampler` of a batch sampler."""
        return self

    @property
    def global_batch_size(self) -> int:
        """Samples per batch of all processes."""
        return self.batch_size * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch; a new epoch starts with its first batch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.start_batch = 0

    def resume(self, epoch: int, batches_done: int) -> None:
        """Skip the first batches of an epoch, in the next iteration only."""
        self.epoch = epoch
        self.start_batch = batches_done

    def __iter__(self) -> Iterator[list[int]]:
        # The start is for one iteration: the epoch after a resumed one begins with its first batch.
        start_batch, self.start_batch = self.start_batch, 0
        yield from self._iterate_batches(self.epoch, start_batch)

    def _iterate_batches(self, epoch: int, start_batch: int) -> Iterator[list[int]]:
        # Everything follows from seed and epoch, also the parts that are skipped: a resumed run
        # draws the same pools and the same order of batches, and begins within them.
        # The large factor keeps the epochs of one seed apart from those of the next.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(self.num_samples, generator=generator)
        # The tail is cut before the processes take every n-th, so that all have as many batches.
        order = order[: len(self) * self.global_batch_size][self.rank :: self.num_replicas]
        for pool in order.split(self.batch_size * self.batches_per_pool):
            batch_order = torch.randperm(len(pool) // self.batch_size, generator=generator).tolist()
            if start_batch < len(batch_order):  # skipped pools need no lengths
                by_length = sorted(pool.tolist(), key=self.length)
                for batch in batch_order[start_batch:]:
                    yield by_length[batch * self.batch_size : (batch + 1) * self.batch_size]
            start_batch = max(0, start_batch - len(batch_order))


class EpochIndexSampler(Sampler[list[int]]):
    """Batches of indices that encode the epoch: sample i of epoch e is i + e · num_samples.

    The index alone then determines the random augmentation of a sample, in any worker process.

    Example:
        >>> batches = LengthBucketBatchSampler(3, lambda index: 0, batch_size=3)
        >>> sampler = EpochIndexSampler(batches)
        >>> sampler.set_epoch(2)
        >>> sorted(next(iter(sampler)))
        [6, 7, 8]
    """

    def __init__(self, batch_sampler: LengthBucketBatchSampler) -> None:
        self.batch_sampler = batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler)

    @property
    def sampler(self) -> "EpochIndexSampler":
        """The sampler itself: Lightning calls `set_epoch` on the `sampler` of a batch sampler."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self.batch_sampler.epoch

    @property
    def start_batch(self) -> int:
        """Number of batches that the next iteration skips because they were read before."""
        return self.batch_sampler.start_batch

    @property
    def global_batch_size(self) -> int:
        """Samples per batch of all processes."""
        return self.batch_sampler.global_batch_size

    def set_epoch(self, epoch: int) -> None:
        """Select the order and the index offset of an epoch."""
        self.batch_sampler.set_epoch(epoch)

    def resume(self, epoch: int, batches_done: int) -> None:
        """Skip the first batches of an epoch, in the next iteration only."""
        self.batch_sampler.resume(epoch, batches_done)

    def __iter__(self) -> Iterator[list[int]]:
        offset = self.batch_sampler.epoch * self.batch_sampler.num_samples
        for batch in self.batch_sampler:
            yield [offset + index for index in batch]


class DistributedEvalSampler(Sampler[int]):
    """Every sample exactly once, in order, split over processes without padding or repeats.

    Unlike `torch.utils.data.DistributedSampler` it never repeats samples, so that scores are exact.

    Args:
        group_size: Number of consecutive samples that stay on one process. With 2, samples 0 and
            1, 2 and 3, and so on form pairs, so that a control can show a model the image of its
            partner, whatever the number of processes; batches must then hold an even number of
            samples. The last group may be smaller.

    Raises:
        ValueError: If a process would get no samples: the others would wait for it forever.

    Example:
        >>> list(DistributedEvalSampler(5, rank=1, num_replicas=2))
        [1, 3]
        >>> list(DistributedEvalSampler(7, rank=1, num_replicas=2, group_size=2))
        [2, 3, 6]
    """

    def __init__(
        self, num_samples: int, *, rank: int = 0, num_replicas: int = 1, group_size: int = 1
    ) -> None:
        num_groups = -(-num_samples // group_size)
        if num_groups < num_replicas:
            group = "sample" if group_size == 1 else f"group of {group_size} samples"
            raise ValueError(
                f"each of {num_replicas} processes needs a {group} to evaluate, got {num_samples} "
                "samples; use fewer processes (--trainer.devices), or more samples"
            )
        self.indices = [
            index
            for group in range(rank, num_groups, num_replicas)
            for index in range(group * group_size, min((group + 1) * group_size, num_samples))
        ]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)
