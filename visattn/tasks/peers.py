"""What the processes of a run know of each other, and what is said when one is lost."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import distributed

from visattn.tasks.heartbeats import LifeSigns
from visattn.tasks.launches import end_children, failed_child

_SIGNS = re.compile(
    r"closed by peer|reset by peer|timed out|timeout|broken pipe|connection (refused|was closed)"
    r"|unreachable|gloo|nccl|recvValue|sendBytes|recvBytes|failed to (connect|recv)",
    re.IGNORECASE,
)
_ADVICE = (
    "look for what it said last; when all hosts are there again, say the same command with "
    "--ckpt_path last"
)


def peer_lost(error: BaseException) -> bool:
    """Return whether an error comes of another process that ended or cannot be reached.

    Nothing that needs the others may then be done: it would only wait for them once more.

    Example:
        >>> peer_lost(RuntimeError("[gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"))
        True
        >>> peer_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
        False
    """
    if isinstance(error, distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and bool(_SIGNS.search(str(error)))


@contextmanager
def losses_told() -> Iterator[None]:
    """Turn the error of a lost process into one that says which it was and what to do.

    Processes that were started here are ended, whatever the error was.

    Raises:
        ConnectionError: If a process was lost.

    Example:
        >>> with losses_told():
        ...     pass
    """
    try:
        yield
    except BaseException as error:
        failed = failed_child()
        end_children()
        if peer_lost(error):
            told = [note for note in getattr(error, "__notes__", []) if note.startswith("rank ")]
            raise ConnectionError(" ".join(told) or failed or _never_met(error)) from error
        raise


def _never_met(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return (
        f"the processes of the run did not find each other ({first}); start the command on every "
        "host, with the same MASTER_ADDR and MASTER_PORT, which all of them must reach; --timeout "
        "says how many seconds they wait for each other"
    )


class PeerWatch(Callback):
    """Let the processes of a run know each other: refuse early what would make some wait for ever.

    Before the first step all say how many samples they see. A process with nothing to evaluate, or
    hosts with different data, end the run at once, with one message. When a process is lost later,
    the others find out which.
    """

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.hearts: LifeSigns | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let all know where each is, and refuse what cannot go well."""
        if trainer.world_size == 1 or not distributed.is_initialized():
            return
        home = f"{socket.gethostname()}, process {os.getpid()}"
        counts, refused = _samples(trainer, stage)
        every: list[Any] = [None] * trainer.world_size
        distributed.all_gather_object(every, (home, counts, refused))
        self.homes = [one for one, _, _ in every]
        said = next((one for _, _, one in every if one), None) or self._unlike(
            [each for _, each, _ in every]
        )
        if said and not trainer.is_global_zero:
            raise SystemExit(1)  # rank 0 says it for all
        if said:
            raise ValueError(said)
        self.hearts = LifeSigns(trainer.global_rank, trainer.world_size)
        self.hearts.start()

    def _unlike(self, counts: list[dict[str, int]]) -> str | None:
        """Return what is wrong if not all processes see as many samples."""
        for rank, seen in enumerate(counts):
            if seen != counts[0]:
                return (
                    f"all processes must see the same data: rank 0 ({self.homes[0]}) has "
                    f"{counts[0]}, rank {rank} ({self.homes[rank]}) has {seen}; give every host "
                    "the same files"
                )
        return None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Find out which process is lost, and note it on the exception."""
        if self.hearts and peer_lost(exception):
            exception.add_note(self._told(trainer))
        self._rest()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give no further sign of life."""
        self._rest()

    def _rest(self) -> None:
        if self.hearts:
            self.hearts.stop()
        self.hearts = None

    def _told(self, trainer: Trainer) -> str:
        rank, silent = trainer.global_rank, self.hearts.silent() if self.hearts else None
        start = f"rank {rank} of {trainer.world_size} stopped:"
        if silent:
            lost = " and ".join(f"rank {one} ({self.homes[one]})" for one in silent)
            return f"{start} {lost} ended or cannot be reached; {_ADVICE}"
        if silent is None:
            return (
                f"{start} rank 0 ({self.homes[0]}) ended or cannot be reached, and with it what "
                f"holds the run together; {_ADVICE}"
            )
        return (
            f"{start} all processes live, but within the time-out not all came to where this one "
            f"waited; say a longer --timeout if one of them may take so long, else {_ADVICE}"
        )


def _samples(trainer: Trainer, stage: str) -> tuple[dict[str, int], str | None]:
    """Return how many samples there are of each kind, or why there is no going on."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    kinds = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}.get(stage, ())
    counts: dict[str, int] = {}
    for kind in kinds:
        if data is None or getattr(trainer, f"limit_{kind}_batches", 1) == 0:
            continue
        try:
            loaders = getattr(data, f"{kind}_dataloader")()
        except (ValueError, OSError) as error:
            return counts, f"{_NAMED[kind]}: {error}"
        for number, loader in enumerate(loaders if isinstance(loaders, list) else [loaders]):
            counts[f"{kind} {number}" if number else kind] = len(loader.dataset)
    return counts, None


_NAMED = {"train": "training", "val": "validation", "test": "test"}
