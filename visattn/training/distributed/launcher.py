"""Runs on several processes: launch, equal data sets, lost processes."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import distributed
from torch.distributed import constants

from visattn.training.distributed.fsdp import FSDP2Strategy

_LOST = re.compile(
    r"closed by peer|reset by peer|timed out|timeout|broken pipe|connection (refused|was closed)"
    r"|unreachable|gloo|nccl|recvValue|sendBytes|recvBytes|failed to (connect|recv)",
    re.IGNORECASE,
)
_SPLITS = {
    "fit": {"train": "training", "val": "validation"},
    "validate": {"val": "validation"},
    "test": {"test": "test"},
}


def is_peer_lost(error: BaseException) -> bool:
    """Return whether an error means that another process ended or cannot be reached.

    Example:
        >>> is_peer_lost(RuntimeError("[gloo/pair.cc:534] Connection closed by peer [10.0.0.2]"))
        True
        >>> is_peer_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
        False
    """
    lost = isinstance(error, RuntimeError) and bool(_LOST.search(str(error)))
    return lost or isinstance(error, distributed.DistError)


@contextmanager
def report_lost_peers() -> Iterator[None]:
    """Replace the error of a lost process by one that says what to do; name it if it ran here.

    After any error the processes started here are ended.

    Example:
        >>> with report_lost_peers():
        ...     pass
    """
    try:
        yield
    except BaseException as error:
        lost = is_peer_lost(error)
        # A lost connection is only the consequence: the process that failed says more.
        deadline = time.monotonic() + 2.0  # a killed process takes a moment to end
        while not (failed := failed_child()) and lost and time.monotonic() < deadline:
            time.sleep(0.1)
        terminate_children()
        if lost:
            raise ConnectionError(_lost_message(error, failed)) from error
        raise


def _lost_message(error: BaseException, failed: str) -> str:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    if not failed and isinstance(error, distributed.DistStoreError | distributed.DistNetworkError):
        return (
            f"the processes of the run did not find each other ({reason}); start the command on "
            "every host with the same MASTER_ADDR and MASTER_PORT, which all hosts must reach; "
            "--timeout sets how many seconds they wait for each other"
        )
    if not failed:
        failed = f"another process of the run ended or was not reached within --timeout ({reason})"
    return f"{failed}; check its log, then rerun with --ckpt_path last"


class SameDataCheck(Callback):
    """Refuse a run whose processes have data sets of different size, or one without a sample."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Compare the numbers of samples of all processes before the first step."""
        if trainer.world_size == 1 or not distributed.is_initialized():
            return
        counts, error = _sample_counts(trainer, stage)
        gathered: list[Any] = [None] * trainer.world_size
        distributed.all_gather_object(gathered, (counts, error))
        errors = [error for _, error in gathered if error]
        errors += [
            f"all processes must have the same data: rank 0 has {gathered[0][0]} samples, rank "
            f"{rank} has {counts}; give every host the same files"
            for rank, (counts, _) in enumerate(gathered)
            if counts != gathered[0][0]
        ]
        if errors:
            # Rank 0 prints the message for all.
            raise ValueError(errors[0]) if trainer.is_global_zero else SystemExit(1)


def _sample_counts(trainer: Trainer, stage: str) -> tuple[dict[str, int], str]:
    """Return the number of samples of each split, and an error if a split has too few."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    counts: dict[str, int] = {}
    for split, name in _SPLITS.get(stage, {}).items():
        if data is None or getattr(trainer, f"limit_{split}_batches", 1) == 0:
            continue
        try:
            loaders = getattr(data, f"{split}_dataloader")()
        except (ValueError, OSError) as error:
            # Raised on one process, the error would leave the others waiting for it; all get it
            # instead.
            return counts, f"{name}: {error}"
        for index, loader in enumerate(loaders if isinstance(loaders, list) else [loaders]):
            counts[f"{split} {index}" if index else split] = len(loader.dataset)
    return counts, ""


TIMEOUT = 300.0
"""Default for the seconds that processes wait for each other."""
_STOPPED = {None, 0, 130, 143}  # exit codes: running, done, Ctrl-C, SIGTERM
_children: list[subprocess.Popen[bytes]] = []


def configure_strategy(
    strategy: Strategy, *, timeout: float = TIMEOUT, find_unused_parameters: bool = False
) -> None:
    """Set the time-out, in seconds, and the launcher of DDP and FSDP2, but not of others.

    A time-out of their own is kept. DDP has to know whether steps leave out parameters.

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
    """Wait for the processes started here to end, and kill those that do not."""
    deadline = time.monotonic() + seconds
    while _children:
        child = _children.pop()
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
