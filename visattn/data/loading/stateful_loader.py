"""Batches for training, whose place in the run is two numbers: the epoch and the batches done."""

import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler


class StatefulDataLoader(DataLoader[Any]):
    """Batches in an order that can be taken up again at any batch, with any number of workers.

    There is no random state to be kept: which samples come when depends on the order's seed and
    the epoch, and what a sample draws must depend on its number alone, which `EpochIndexSampler`
    makes another in each epoch (see `numbered_uniforms`). Nothing is read before the first batch
    is asked for, so that the epoch may be told until then.

    Args:
        samples: The samples; what is asked of them may be numbers behind the last one.
        order: Which batches come.
        collate: What makes a batch of samples. If left out, the samples are asked for whole
            batches: an item is one.
        workers: Processes that read ahead; 0 reads in between.

    Example:
        >>> def loader():
        ...     order = LengthBucketBatchSampler(6, lambda index: 0, batch=2)
        ...     return StatefulDataLoader(list("abcdef"), order, collate="".join)
        >>> whole, part, again = loader(), loader(), loader()
        >>> first = next(iter(part))
        >>> again.load_state_dict(part.state_dict())
        >>> [first, *again] == list(whole)
        True
    """

    def __init__(
        self,
        samples: Any,
        order: LengthBucketBatchSampler | EpochIndexSampler,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "num_workers": workers,
            "persistent_workers": workers > 0,
            "worker_init_fn": _outlast_signals,
            "generator": torch.Generator(),  # else each epoch would draw from everybody's
        }
        if collate is None:
            super().__init__(samples, batch_size=None, sampler=order, **options)  # type: ignore[arg-type]
        else:
            super().__init__(samples, batch_sampler=order, collate_fn=collate, **options)
        self.order = order
        self._epoch, self._given = -1, 0

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._epoch, self._given = self.order.epoch, self.order.first
        for batch in super().__iter__():
            self._given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and how many of its batches were given, and how large they are."""
        begun = self._epoch == self.order.epoch and not self.order.first
        given = self._given if begun else self.order.first
        return {"epoch": self.order.epoch, "done": given, "together": self.order.together}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another loader was; after its last batch nothing is left of that epoch."""
        if state["together"] != self.order.together:
            warnings.warn(
                f"batches held {state['together']} samples of all processes and now hold "
                f"{self.order.together}: the samples of this epoch are others than without a "
                "break; keep the batch times the number of processes as it was to have the same",
                stacklevel=2,
            )
        self.order.go_on(state["epoch"], state["done"])
        self._epoch = -1


def _outlast_signals(_: int) -> None:
    """Let the process that trains decide when to stop; its reader ends with it.

    Ctrl-C reaches a whole group of processes. A reader that ended by it would break the step that
    is still to be finished. One that does not end otherwise takes the second SIGTERM to heart.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _once)


def _once(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
