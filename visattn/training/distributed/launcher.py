"""Processes of a run on one host: their time-out, start and end."""

import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch.distributed import constants

from visattn.training.distributed.fsdp import FSDP2Strategy

TIMEOUT = 300.0
"""Default for the seconds that processes wait for each other."""
_STOPPED = {None, 0, 130, 143}  # exit codes: running, done, Ctrl-C, SIGTERM
_children: list[subprocess.Popen[bytes]] = []


def configure_strategy(
    strategy: Strategy, *, timeout: float = TIMEOUT, find_unused_parameters: bool = False
) -> None:
    """Set the time-out and the launcher of DDP and FSDP2; other strategies stay as they are.

    Args:
        strategy: Strategy of a trainer that has not started; a time-out of its own is kept.
        timeout: Seconds that processes wait for each other: at least 1, less than 10 million.
        find_unused_parameters: Whether some steps leave out some parameters, as DDP has to know.

    Raises:
        ValueError: If the time-out is out of range.

    Example:
        >>> strategy = DDPStrategy()
        >>> configure_strategy(strategy, timeout=20)
        >>> strategy._timeout.total_seconds()
        20.0
    """
    if not 1 <= timeout < 1e7:
        raise ValueError(f"--timeout must be 1 to 10 million seconds, got {timeout}")
    if not isinstance(strategy, DDPStrategy | FSDP2Strategy):
        return
    if strategy._timeout == constants.default_pg_timeout:  # noqa: SLF001
        strategy._timeout = timedelta(seconds=timeout)  # noqa: SLF001
    if find_unused_parameters and isinstance(strategy, DDPStrategy):
        strategy._ddp_kwargs.setdefault("find_unused_parameters", True)  # noqa: SLF001
    launcher = strategy.launcher
    if type(launcher) is _SubprocessScriptLauncher:
        strategy._launcher = ChildLauncher(  # noqa: SLF001
            launcher.cluster_environment, launcher.num_processes, launcher.num_nodes
        )


class ChildLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher, but a process that fails does not kill this one.

    Lightning kills all processes by force, without a message and with another exit code. Here the
    next collective operation fails, and `report_lost_peers` names the process.
    """

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Start the processes of ranks 1 and up, then run the function as rank 0."""
        kwargs.pop("trainer", None)
        environment = self.cluster_environment
        environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not environment.creates_processes_externally:
            self._call_children_scripts()
            _children.extend(self.procs)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


def failed_child() -> str:
    """Return a description of the first process started here that failed, or an empty string.

    Example:
        >>> failed_child()
        ''
    """
    for rank, child in enumerate(_children, 1):
        code = child.poll()
        if code is not None and code not in _STOPPED:
            status = f"signal {-code}" if code < 0 else f"code {code}"
            return f"rank {rank} on this host (process {child.pid}) ended with {status}"
    return ""


def terminate_children(seconds: float = 10.0) -> None:
    """Wait for the processes started here to end, and kill those that do not.

    Args:
        seconds: Time to end by themselves.
    """
    deadline = time.monotonic() + seconds
    while _children:
        child = _children.pop()
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
