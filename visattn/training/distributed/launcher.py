"""How the processes of a run on one host are started and watched."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch.distributed import constants

TIMEOUT = 300.0
"""Seconds that processes wait for each other, unless something else is asked for."""
_GRACE = 60.0  # seconds in which the first process may notice by itself that another one failed
_ASKED = {0, 130, 143}  # exit codes of processes that did what they were told
_children: list[subprocess.Popen[bytes]] = []


def keep_watch(strategy: Strategy, *, seconds: float = TIMEOUT, idle: bool = False) -> None:
    """Let the processes of a strategy wait so long for each other, and watch those started here.

    A strategy that names a time-out of its own keeps it.

    Args:
        strategy: Of a trainer that has not begun; those without several processes stay as they are.
        seconds: How long: at least 1, and less than 10 million.
        idle: Some parameters have no part in some steps: look for these at each.

    Raises:
        ValueError: If the time is too short or too long.

    Example:
        >>> strategy = DDPStrategy()
        >>> keep_watch(strategy, seconds=20)
        >>> strategy._timeout.total_seconds()
        20.0
    """
    if not 1 <= seconds < 1e7:
        raise ValueError(f"--timeout must be 1 to 10 million seconds, got {seconds}")
    if not isinstance(strategy, DDPStrategy):
        return
    if strategy._timeout == constants.default_pg_timeout:  # noqa: SLF001
        strategy._timeout = timedelta(seconds=seconds)  # noqa: SLF001
    if idle:
        strategy._ddp_kwargs.setdefault("find_unused_parameters", True)  # noqa: SLF001
    launcher = strategy.launcher
    if type(launcher) is _SubprocessScriptLauncher:
        strategy._launcher = WatchedLauncher(  # noqa: SLF001
            launcher.cluster_environment, launcher.num_processes, launcher.num_nodes
        )


class WatchedLauncher(_SubprocessScriptLauncher):
    """Start the other processes of this host, and do not kill this one when one of them fails.

    Lightning's own kills all by force, which leaves no word and no exit code of ours. Here the
    first process finds out itself and says so; only if it does not within a minute is it ended.
    """

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start the others, then do the work of the first."""
        kwargs.pop("trainer", None)
        environment = self.cluster_environment
        environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not environment.creates_processes_externally:
            self._call_children_scripts()
            _children.extend(self.procs)
            ChildMonitor(self.procs).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


class ChildMonitor(threading.Thread):
    """End this process if it does not see that one of those it started has failed.

    Args:
        children: Those that were started, ranks 1 and on.
        grace: Seconds in which this process may find out by itself.
    """

    def __init__(self, children: Sequence[subprocess.Popen[bytes]], grace: float = _GRACE) -> None:
        super().__init__(daemon=True, name="child-watch")
        self.children, self.grace = children, grace

    def run(self) -> None:
        """Watch until all have ended well, or one has not."""
        while (failed := self.failed()) is None:
            if all(child.returncode is not None for child in self.children):
                return
            time.sleep(0.5)
        time.sleep(self.grace)
        print(f"visattn: {failed}", file=sys.stderr, flush=True)  # noqa: T201
        end_children(seconds=0)
        os._exit(1)

    def failed(self) -> str | None:
        """Return what happened to a process that did not end as it was told."""
        return failed_child(self.children)


def failed_child(children: Sequence[subprocess.Popen[bytes]] = _children) -> str | None:
    """Return what happened to a process that was started here and did not end as it was told.

    Args:
        children: Those to look at, ranks 1 and on; all that were started if left out.

    Example:
        >>> failed_child()
    """
    for rank, child in enumerate(children, 1):
        code = child.poll()
        if code is not None and code not in _ASKED:
            how = f"signal {-code}" if code < 0 else f"code {code}"
            return (
                f"rank {rank} on this host (process {child.pid}) ended with {how}; look for what "
                "it said last, then say the same command with --ckpt_path last"
            )
    return None


def end_children(seconds: float = 10.0) -> None:
    """End the processes that were started here, by force if they do not end themselves.

    Args:
        seconds: How long they have for it.
    """
    until = time.monotonic() + seconds
    while _children:
        child = _children.pop()
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
