"""A sign of life from each process of a run, so that it can be said which one is lost."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import distributed
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from visattn.training.distributed.launcher import end_children, failed_child

_EVERY = 1.0  # seconds between signs of life
_WATCHED = 4.0  # seconds that a process is given for one
_PATIENCE = 8.0  # seconds after which whoever keeps the signs counts as unreachable


class LifeSigns(threading.Thread):
    """Leave a sign of life every second, where the processes of a run found each other.

    Args:
        rank: Which process this is.
        world: How many there are.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(daemon=True, name="heartbeats")
        self.rank, self.world = rank, world
        self._ended = threading.Event()

    def run(self) -> None:
        """Leave signs until `stop`, or until nobody takes them."""
        with suppress(RuntimeError):  # nobody takes them: the process that trains will say so
            store = _meeting_place()
            while not self._ended.is_set():
                store.add(_key(self.rank), 1)
                self._ended.wait(_EVERY)

    def stop(self) -> None:
        """Leave no further sign."""
        self._ended.set()

    def silent(self) -> list[int] | None:
        """Return which processes give no sign of life; None if that cannot be found out.

        It takes 4 to 8 seconds. Then the host of rank 0, which keeps the signs, is out of reach.
        """
        found: list[list[int]] = []

        def ask() -> None:
            with suppress(RuntimeError):
                found.append(self._ask())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_PATIENCE)  # a read over a dead link has no end of its own
        return found[0] if found else None

    def _ask(self) -> list[int]:
        store, others = _meeting_place(), [n for n in range(self.world) if n != self.rank]
        before = [store.add(_key(rank), 0) for rank in others]
        self._ended.wait(_WATCHED)
        after = [store.add(_key(rank), 0) for rank in others]
        counts = zip(others, before, after, strict=True)
        return [rank for rank, early, late in counts if early == late]


def _key(rank: int) -> str:
    return f"visattn/alive/{rank}"


def _meeting_place() -> TCPStore:
    """Return a line of our own to where the processes found each other; others may be waiting."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_PATIENCE)
    )


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


class PeerMonitor(Callback):
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
