"""Command lines of visattn in processes that can be killed, forked after one import."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from pathlib import Path

HELPERS = Path(__file__).parent
TRUSTED = "task_runs"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["visattn.training.cli"])


def forked_run(
    folder: Path, *words: str, processes: int = 1, **broken: str
) -> tuple[list[int], str]:
    """Run a command line in a folder, in an environment with BREAK, say.

    Return the exit code of each process, below 0 for a signal, and their output.
    """
    ranks = range(processes)
    environment = {**environment_of_runs(), **broken}
    if processes > 1:
        words = (*words, "--trainer.devices", str(processes), "--trainer.strategy", "ddp")
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "NODE_RANK": "0"}
        environment["WORLD_SIZE"] = str(processes)
    logs = [folder / f"said-{rank}.txt" for rank in ranks]
    children = [
        _SERVER.Process(target=_run, args=(folder, words, environment, rank, logs[rank]))
        for rank in ranks
    ]
    for child in children:
        child.start()
    until = time.monotonic() + 300
    for child in children:
        child.join(max(0, until - time.monotonic()))
        child.kill()
        child.join()
    said = "\n".join(log.read_text(errors="replace") for log in logs)
    return [child.exitcode or 0 for child in children], said


def environment_of_runs() -> dict[str, str]:
    """Return the environment in which a run finds the package and this folder."""
    paths = [str(HELPERS.parents[1]), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VISATTN_TRUST_MODULES": TRUSTED,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _run(
    folder: Path, words: tuple[str, ...], environment: dict[str, str], rank: int, log: Path
) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "WORLD_SIZE" in environment:
        os.environ["LOCAL_RANK"] = str(rank)
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    from visattn.cli import main

    torch.set_num_threads(1)
    rank_zero_only.rank = rank  # type: ignore[attr-defined]
    sys.argv = ["visattn"]
    sys.exit(main(list(words)))


def free_port() -> str:
    """Return an unused port."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return str(opened.getsockname()[1])
