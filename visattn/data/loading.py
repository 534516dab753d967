"""Per-sample random numbers, samplers, and a data loader that resumes exactly."""

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from visattn.images.reader import ImageError

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, made odd


def mix_seed(*numbers: int) -> int:
    """Mix integers, in order, into a seed from 0 to 2^63 - 1.

    Unlike Python's `hash`, the result is the same on every machine and in every process.

    Example:
        >>> mix_seed(3, 5) == mix_seed(3, 5), mix_seed(3, 5) == mix_seed(5, 3)
        (True, False)

    Source:
        The mixing constants of SplitMix64: Steele, Lea, Flood 2014, section 4.
    """
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = _mix_bits(state + np.uint64(number % 2**64) + _GOLDEN_GAMMA)
    return int(state[0]) >> 1


def per_sample_uniforms(
    seed: int, indices: Sequence[int], count: int
) -> Float[Tensor, "n {count}"]:
    """Return `count` float64 random numbers for each sample, uniform in [0, 1).

    They depend only on the seed and the index of the sample (below 2^63), not on its batch, the
    worker process or earlier draws, so there is no generator state to save.

    Example:
        >>> uniforms = per_sample_uniforms(0, [7, 3], 2)
        >>> bool((uniforms[1] == per_sample_uniforms(0, [3, 5, 11], 2)[0]).all())
        True

    Source:
        Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", section 4 and
        the mixing constants of SplitMix64. Each sample has its own stream, whose start is mixed
        from the seed and the index.
    """
    start = _mix_bits(_mix_bits(np.array([seed], np.uint64)) + np.array(indices, np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN_GAMMA
    bits = _mix_bits(start[:, None] + steps)
    # float64 holds 53 bits: the upper 53 of 64 give multiples of 2^-53, never rounded up to 1.
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix_bits(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Apply the finalizer of SplitMix64: each output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class EpochBatches(Sampler[list[int]]):
    """Random batches for one process, in an order determined by the seed and the epoch.

    Sample i of epoch e has index i + e · num_samples, which determines its random augmentation in
    any worker process. The order is split across processes; a tail that would give them different
    numbers of batches is dropped.

    Args:
        num_samples: Size of the data set.
        batch_size: Samples per batch and process.
        seed: Seed of the order.
        rank: Rank of this process.
        num_replicas: Number of processes.
        weights: Sampling weight of each sample, drawn with replacement; None for each sample once.

    Raises:
        ValueError: If there are too few samples for a batch per process.

    Example:
        >>> batches = EpochBatches(3, batch_size=3)
        >>> batches.set_epoch(2)
        >>> [sorted(batch) for batch in batches]
        [[6, 7, 8]]
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        self.global_batch_size = batch_size * num_replicas
        if not 1 <= batch_size <= self.global_batch_size <= num_samples:
            raise ValueError(
                f"{num_replicas} processes with {batch_size} samples each need "
                f"{self.global_batch_size} samples, got {num_samples}; lower the batch size"
            )
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.num_replicas = num_replicas
        self.weights = weights
        self.epoch = 0
        self.start_batch = 0

    def __len__(self) -> int:
        return self.num_samples // self.global_batch_size

    @property
    def sampler(self) -> Self:
        """The sampler itself: Lightning calls `set_epoch` on the `sampler` of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Select an epoch; a new one starts with its first batch."""
        if epoch != self.epoch:
            self.resume(epoch, 0)

    def resume(self, epoch: int, batches_done: int) -> None:
        """Skip the first batches of an epoch, in the next iteration only."""
        self.epoch = epoch
        self.start_batch = batches_done

    def __iter__(self) -> Iterator[list[int]]:
        # Skip batches only once: the epoch after a resumed one starts with its first batch.
        start_batch, self.start_batch = self.start_batch, 0
        # The large factor keeps the epochs of neighboring seeds apart.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        if self.weights is None:
            order = torch.randperm(self.num_samples, generator=generator)
        else:
            order = torch.multinomial(
                self.weights, self.num_samples, replacement=True, generator=generator
            )
        # Cut the tail before splitting, so that all processes get the same number of batches.
        order = order[: len(self) * self.global_batch_size][self.rank :: self.num_replicas]
        for batch in (order + self.epoch * self.num_samples).split(self.batch_size)[start_batch:]:
            yield batch.tolist()


class DistributedEvalSampler(Sampler[int]):
    """Splits samples across processes, in order and each exactly once.

    Unlike `torch.utils.data.DistributedSampler`, it does not repeat samples, so scores are exact.

    Args:
        group_size: Number of consecutive samples kept on one process. With 2, samples 0 and 1, 2
            and 3, ... form pairs, whose images can be swapped as a control on any number of
            processes; batch sizes must then be even. The last group may be smaller.

    Raises:
        ValueError: If a process would get no samples; the others would wait for it forever.

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


_MAX_ATTEMPTS = 32


@dataclass(eq=False)
class Prepared(Dataset[Any]):
    """Map-style dataset of the samples of a source, prepared as network inputs.

    Args:
        samples: Samples of a split. If they have an attribute `endless`, every index gives a new
            sample; otherwise indices wrap around.
        prepare: Turns a sample and a seed, different for each sample and epoch, into a network
            input.
        seed: Seed of the split.
        substitute: Replace a sample whose image cannot be read by the next readable one, with a
            warning.

    Example:
        >>> dataset = Prepared(["a", "b"], lambda sample, seed: (sample, seed), seed=0)
        >>> dataset[3] == dataset[1], dataset[3][0]
        (False, 'b')
    """

    samples: Sequence[Any]
    prepare: Callable[[Any, int], Any]
    _: KW_ONLY
    seed: int
    substitute: bool = False

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Any]:
        # Without this, iteration would not end: __getitem__ never raises IndexError.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Any:
        seed = mix_seed(self.seed, index)
        for other in range(index, index + _MAX_ATTEMPTS * self.substitute):
            try:
                return self.prepare(self.samples[self._row(other)], seed)
            except ImageError as error:
                warnings.warn(f"{error}; using the next photo instead", stacklevel=2)
        return self.prepare(self.samples[self._row(index)], seed)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several samples, which some sources generate faster in one call."""
        if not hasattr(self.samples, "__getitems__"):
            return [self[index] for index in indices]
        drawn: Any = self.samples
        samples = drawn.__getitems__([self._row(index) for index in indices])
        seeds = [mix_seed(self.seed, index) for index in indices]
        return [self.prepare(*pair) for pair in zip(samples, seeds, strict=True)]

    def _row(self, index: int) -> int:
        return index if getattr(self.samples, "endless", False) else index % len(self.samples)


_FEW_SAMPLES, _MAX_WORKERS = 1000, 16


class StatefulDataLoader(DataLoader[Any]):
    """Training data loader that can resume at any batch, with any number of workers.

    No random state is saved: the order depends on the sampler's seed and epoch, and the random
    numbers of a sample on its index, which `EpochBatches` changes every epoch. Nothing is read
    before the first batch is requested, so the epoch can be set until then.

    Args:
        dataset: The samples, with indices as `EpochBatches` numbers them.
        batch_sampler: The batches of indices of each epoch.
        content: A checksum of the photos; resuming with another one gives a warning.
        options: Options of `loader_options`.

    Example:
        >>> def loader():
        ...     batches = EpochBatches(6, batch_size=2)
        ...     return StatefulDataLoader("abcdef", batches, collate_fn="".join)
        >>> complete, interrupted, resumed = loader(), loader(), loader()
        >>> first = next(iter(interrupted))
        >>> resumed.load_state_dict(interrupted.state_dict())
        >>> [first, *resumed] == list(complete)
        True
    """

    # The loader of torchdata (0.11) saves the state of each worker process and resumes only with
    # the same number of workers; here the position in the epoch is enough.

    def __init__(
        self, dataset: Any, batch_sampler: EpochBatches, *, content: int = 0, **options: Any
    ) -> None:
        super().__init__(
            dataset,
            **loader_options(batch_sampler, **options),
            generator=torch.Generator(),  # else each epoch would advance the global generator
        )
        self.epoch_sampler = batch_sampler
        self.content = content
        self._epoch = -1
        self._batches_done = 0

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._epoch = self.epoch_sampler.epoch
        self._batches_done = self.epoch_sampler.start_batch
        for batch in super().__iter__():
            self._batches_done += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, the number of its batches done, and the global batch size."""
        sampler = self.epoch_sampler
        # The sampler's start is where the next iteration begins; it is 0 once that has begun.
        #
        #     resumed, not begun      start 7, epoch -1        7, as loaded
        #     in the epoch            start 0, same epoch      batches that training took: workers
        #                                                      have drawn more from the sampler
        #     next one, not begun     start 0, other epoch     0
        started = self._epoch == sampler.epoch and not sampler.start_batch
        return {
            "epoch": sampler.epoch,
            "batches_done": self._batches_done if started else sampler.start_batch,
            "global_batch_size": sampler.global_batch_size,
            "num_samples": sampler.num_samples,
            "content": self.content,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the batches recorded in a state, even if none of the epoch are left."""
        sampler = self.epoch_sampler
        same_data = "resume with the same training data, or start a new run with --init_from"
        for name, cure in (
            ("global_batch_size", "keep batch size times number of processes"),
            ("num_samples", same_data),
            ("content", same_data),
        ):
            before, now = state.get(name), self.state_dict()[name]
            if before not in (None, now):
                change = f"{name.replace('_', ' ')} was {before:,} and is now {now:,}"
                if name == "content":
                    change = "the training photos have changed"
                warnings.warn(
                    f"{change}: this epoch will differ from an uninterrupted run; {cure} to "
                    "reproduce it",
                    stacklevel=2,
                )
        sampler.resume(state["epoch"], state["batches_done"])
        self._epoch = -1


def default_num_workers(count: int, *, num_processes: int = 1) -> int:
    """Return the default number of worker processes for data read from files.

    All but one of the cores of this host divided by `num_processes`, at most 16; 0 for small
    datasets, which are read before workers would have started.

    Example:
        >>> default_num_workers(100)
        0
    """
    if count < _FEW_SAMPLES:
        return 0
    cores = available_cores() // max(1, num_processes)
    return max(0, min(_MAX_WORKERS, cores - 1))


def loader_options(
    batches: Iterable[list[int]],
    *,
    collate_fn: Callable[[list[Any]], Any],
    num_workers: int = 0,
    pin_memory: bool = False,
) -> dict[str, Any]:
    """Return the options of a `DataLoader` for training or evaluation."""
    return {
        "batch_sampler": batches,
        "collate_fn": collate_fn,
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "worker_init_fn": _leave_signals_to_trainer,
        "pin_memory": pin_memory and torch.cuda.is_available(),
    }


def _leave_signals_to_trainer(_: int) -> None:
    """Ignore the first stop signal in a worker: the training process decides when to stop.

    Ctrl-C reaches the whole process group. A worker that exits would break the step that is still
    running. A second SIGTERM ends the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))


def available_cores() -> int:
    """Return the number of cores available to this process, which a container may limit.

    Example:
        >>> available_cores() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
