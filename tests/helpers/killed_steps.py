"""Stop work at each of its steps on the disk: renames, removals, flushes."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

_STEPS = ("replace", "rename", "unlink", "fsync", "mkdir")


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a process that is killed just before a step; return whether it came so far."""
    child = os.fork()
    if not child:
        _stop_before(step, lambda: os.kill(os.getpid(), signal.SIGKILL), setattr)
        work()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the process ended with {status}")
    return status != 0


def failed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work`, one step of which fails as on a broken disk; return whether it came so far."""

    def stop() -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with pytest.MonkeyPatch.context() as patch:
        _stop_before(step, stop, patch.setattr)
        try:
            work()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return True
    return False


def _stop_before(step: int, stop: Callable[[], object], replace: Callable[..., object]) -> None:
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step + 1:
                stop()
            return function(*args, **kwargs)

        return run

    for name in _STEPS:
        replace(os, name, counted(getattr(os, name)))
