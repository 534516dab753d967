"""A sign of life from each process of a run, so that it can be said which one is lost."""

import os
import threading
from contextlib import suppress
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

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
