"""Data loader: exact resume, unreadable images replaced, as many workers as cores."""

import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from os import fsdecode, fsencode
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
from torch.utils.data import DataLoader

from visattn.data.loading.samplers import (
    EpochIndexSampler,
    LengthBucketBatchSampler,
    mix_seed,
    per_sample_uniforms,
)
from visattn.images.reader import ImageError


def available_cores() -> int:
    """Return the number of cores that this process may use, which a container may limit.

    Example:
        >>> available_cores() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class PathList(Sequence[Path]):
    """An immutable list of paths that takes the bytes of their names and 8 more for each.

    A `Path` takes about 400 bytes, and a worker process copies each one that it touches, since
    reading an object changes its reference count. Arrays are shared with workers.

    Example:
        >>> files = PathList([Path("a/1.png"), Path("b/2.png"), Path("b/3.png")])
        >>> files[1].as_posix(), len(files), [path.name for path in files[::2]]
        ('b/2.png', 3, ['1.png', '3.png'])
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        names = [fsencode(path) for path in paths]
        self._ends = np.array([0, *accumulate(map(len, names))], np.int64)
        self._bytes = np.frombuffer(b"".join(names), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> "PathList": ...
    def __getitem__(self, index: int | slice) -> "Path | PathList":
        """Return a path, or a list of several."""
        if isinstance(index, slice):
            return PathList(self[number] for number in range(*index.indices(len(self))))
        position = range(len(self))[index]  # negative ones count from the end
        start, end = self._ends[position : position + 2]
        return Path(fsdecode(self._bytes[start:end].tobytes()))


OnError = Literal["raise", "substitute"]
Sample = TypeVar("Sample")
_MAX_ATTEMPTS = 32
_SEED_STREAM = 2  # separates these random numbers from others with the same seed


class ReadFallback:
    """Replaces each sample whose image cannot be read, and records the unreadable ones.

    The replacement depends on the seed and on the index of the sample: not on the epoch, the
    worker process, or what was read before. All worker processes share one record.

    Example:
        >>> def load(index):
        ...     if index == 1:
        ...         raise ImageError("b.jpg: truncated")
        ...     return "abc"[index]
        >>> fallback = ReadFallback(3)
        >>> fallback.read(0, load), fallback.read(1, load) in ("a", "c")
        ('a', True)
        >>> fallback.unreadable
        [1]
    """

    def __init__(self, num_samples: int, *, seed: int = 0) -> None:
        self.num_samples = num_samples
        self.seed = seed
        self._unreadable = torch.zeros(num_samples, dtype=torch.uint8).share_memory_()

    def read(self, index: int, load: Callable[[int], Sample]) -> Sample:
        """Return the sample that `load` returns, or a replacement if its image is unreadable.

        Raises:
            ImageError: If no replacement can be read either.
        """
        try:
            return load(index)
        except ImageError as error:
            self._unreadable[index] = 1
            return self._load_replacement(index, load, error)

    @property
    def unreadable(self) -> list[int]:
        """Indices of the samples that could not be read so far."""
        return self._unreadable.nonzero().flatten().tolist()

    def candidates(self, index: int) -> Iterator[int]:
        """Yield the indices of the replacements of a sample, in the order of preference."""
        uniforms = per_sample_uniforms(mix_seed(self.seed, _SEED_STREAM), [index], _MAX_ATTEMPTS)
        for uniform in uniforms[0].tolist():
            other = int(uniform * (self.num_samples - 1))
            yield other + (other >= index)  # never the sample itself

    def _load_replacement(
        self, index: int, load: Callable[[int], Sample], first_error: ImageError
    ) -> Sample:
        for other in self.candidates(index) if self.num_samples > 1 else ():
            try:
                return load(other)
            except ImageError:
                self._unreadable[other] = 1
        raise ImageError(
            f"{first_error}; none of the {min(_MAX_ATTEMPTS, self.num_samples - 1)} images that "
            "could replace it can be read either"
        ) from first_error


_FEW_SAMPLES, _MAX_WORKERS = 1000, 16


class StatefulDataLoader(DataLoader[Any]):
    """Training batches in an order that can resume at any batch, with any number of workers.

    There is no random state to save: the order depends on the sampler's seed and the epoch, and
    the random numbers of a sample must depend on its index alone, which `EpochIndexSampler` makes
    different in each epoch (see `per_sample_uniforms`). Nothing is read before the first batch is
    requested, so that the epoch may be set until then.

    Args:
        dataset: The samples; with `EpochIndexSampler` their indices exceed the dataset's length.
        batch_sampler: The batches of indices of each epoch.
        collate_fn: Makes a batch of samples. If None, the dataset is indexed with whole batches.
        num_workers: Number of worker processes; 0 loads in the main process.

    Example:
        >>> def loader():
        ...     batches = LengthBucketBatchSampler(6, lambda index: 0, batch_size=2)
        ...     return StatefulDataLoader(list("abcdef"), batches, collate_fn="".join)
        >>> complete, interrupted, resumed = loader(), loader(), loader()
        >>> first = next(iter(interrupted))
        >>> resumed.load_state_dict(interrupted.state_dict())
        >>> [first, *resumed] == list(complete)
        True
    """

    def __init__(
        self,
        dataset: Any,
        batch_sampler: LengthBucketBatchSampler | EpochIndexSampler,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            dataset,
            **loader_options(batch_sampler, collate_fn, num_workers),
            generator=torch.Generator(),  # else each epoch would advance the global generator
        )
        self.epoch_sampler = batch_sampler
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
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after the batches that another loader has done; may leave none of that epoch."""
        sampler = self.epoch_sampler
        if state["global_batch_size"] != sampler.global_batch_size:
            warnings.warn(
                f"the global batch size was {state['global_batch_size']} and is now "
                f"{sampler.global_batch_size}: the rest of this epoch differs from that of an "
                "uninterrupted run; keep the batch size times the number of processes to reproduce "
                "it",
                stacklevel=2,
            )
        sampler.resume(state["epoch"], state["batches_done"])
        self._epoch = -1


def default_num_workers(count: int, *, num_processes: int = 1) -> int:
    """Return how many processes read batches from files unless the user says so.

    All cores of a training process but one, up to 16, where `num_processes` share those of this
    host; none for few samples, which are read before the workers have started.

    Example:
        >>> default_num_workers(100)
        0
    """
    if count < _FEW_SAMPLES:
        return 0
    cores = available_cores() // max(1, num_processes)
    return max(0, min(_MAX_WORKERS, cores - 1))


def loader_options(
    batches: Iterable[list[int]], collate_fn: Callable[[list[Any]], Any] | None, num_workers: int
) -> dict[str, Any]:
    """Return the options of a `DataLoader` for training or evaluation.

    Example:
        >>> options = loader_options([[0, 2], [1]], "".join, num_workers=0)
        >>> list(DataLoader("abc", **options))
        ['ac', 'b']
    """
    # A data set that returns whole batches takes a list of indices as one item: without a batch
    # size, the loader passes on each list that the sampler yields.
    order: dict[str, Any] = {"batch_sampler": batches, "collate_fn": collate_fn}
    if collate_fn is None:
        order = {"sampler": batches, "batch_size": None}
    return {
        **order,
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "worker_init_fn": _leave_signals_to_trainer,
        # Collated batches have samples, which cannot be pinned.
        "pin_memory": collate_fn is None and torch.cuda.is_available(),
    }


def _leave_signals_to_trainer(_: int) -> None:
    """Ignore the first stop signal in a worker: the training process decides when to stop.

    Ctrl-C reaches the whole process group. A worker that exits would break the step that is still
    running. A second SIGTERM ends the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
