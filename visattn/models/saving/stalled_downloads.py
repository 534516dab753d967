"""Downloads of huggingface_hub that end with an error when a server hardly sends anything.

Its timeouts begin anew with each byte, and it collects 10 MB before it looks at them: a server of
one byte per second would keep a user waiting for years.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""Time in which each part of a file must arrive, and an answer begin.

One part of `CHUNK_BYTES` in it is 1.1 kB/s, a third of what a slow telephone line carries; the hub
follows redirects and repeats failed requests for half a minute, which must not end a download."""
CHUNK_BYTES = 2**16
_LOOK_SECONDS = 0.2
_END_SECONDS = 30.0  # in which reads from closed connections end by themselves


class StalledDownload(Exception):  # noqa: N818 (no error that callers see)
    """A server sent too little for too long."""


class DownloadWatch:
    """Knows until when the next part of a download must arrive.

    Example:
        >>> watch = DownloadWatch()
        >>> watch.run(lambda: "done")
        'done'
    """

    def __init__(self) -> None:
        self._due = math.inf
        self._stopped = False

    def timed(self, function: Callable[..., T]) -> Callable[..., T]:
        """Return a function that asks a server, during which time counts.

        While another process holds the lock of a file, nothing is requested, and time stands still.
        """

        def run(*args: Any, **kwargs: Any) -> T:
            self._progress()
            try:
                return function(*args, **kwargs)
            finally:
                self._due = math.inf

        return run

    def watched(self, file: Any) -> Any:
        """Return an open file of which each write is progress."""
        return _WatchedFile(file, self._progress)

    def run(self, work: Callable[[], T]) -> T:
        """Return what a function returns that runs in a thread of its own.

        Raises:
            StalledDownload: If too little arrived; the connections are closed, so that it ends.
        """
        outcome: list[tuple[T | None, BaseException | None]] = []

        def target() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as error:  # noqa: BLE001 (raised again by the caller's thread)
                outcome.append((None, error))

        thread = threading.Thread(target=target, name="hub download", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
                if time.monotonic() > self._due:
                    raise StalledDownload
        finally:
            if thread.is_alive():
                self._stop(thread)
        value, error = outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _stop(self, thread: threading.Thread) -> None:
        """Close the connections until the thread ends; it removes its partial file itself."""
        from huggingface_hub import close_session

        self._stopped = True  # it may try again
        end = time.monotonic() + _END_SECONDS
        while thread.is_alive() and time.monotonic() < end:
            close_session()
            thread.join(_LOOK_SECONDS)

    def _progress(self) -> None:
        if self._stopped:
            raise StalledDownload
        self._due = time.monotonic() + PATIENCE_SECONDS


class _WatchedFile:
    def __init__(self, file: Any, progress: Callable[[], None]) -> None:
        self._file = file
        self._progress = progress

    def write(self, content: bytes) -> int:
        self._progress()
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
