"""Kill a process at each of its steps on the disk: renames, removals, flushes."""

import os
import signal
from collections.abc import Callable
from typing import Any

_STEPS = ("replace", "rename", "unlink", "fsync", "mkdir")


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Run `work` in a process that is killed just before a step; return whether it came so far."""
    child = os.fork()
    if not child:
        _kill_before(step)
        work()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the process ended with {status}")
    return status != 0


def _kill_before(step: int) -> None:
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return function(*args, **kwargs)

        return run

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
