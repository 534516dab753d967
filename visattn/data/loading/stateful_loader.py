"""Data loader that resumes exactly: its state is the epoch and the number of batches done."""

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from visattn.data.loading.cores import available_cores
from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler

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
        self._epoch, self._batches_done = -1, 0

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._epoch = self.epoch_sampler.epoch
        self._batches_done = self.epoch_sampler.start_batch
        for batch in super().__iter__():
            self._batches_done += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, the number of its batches done, and the global batch size."""
        sampler = self.epoch_sampler
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

    All cores of a training process but one, up to 16; none for few samples, which are read before
    the workers have started.

    Args:
        count: Number of samples.
        num_processes: Training processes that share the cores of this host.

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

    Args:
        batches: The indices of each batch.
        collate_fn: Makes a batch of samples. If None, the dataset is indexed with whole batches.
        num_workers: Number of worker processes, which are kept between epochs.

    Example:
        >>> options = loader_options([[0, 2], [1]], "".join, num_workers=0)
        >>> list(DataLoader("abc", **options))
        ['ac', 'b']
    """
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
    signal.signal(signal.SIGTERM, _ignore_once)


def _ignore_once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
