"""Runs command lines of visattn in one process, or in each of two ranks.

`python -m rank_commands FILE` runs those of a JSON file as two ranks; Lightning is imported once.
"""

import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from visattn.training.command import main

Commands = Sequence[Sequence[str]]
ROOT, HELPERS = Path(__file__).parents[2], Path(__file__).parent
TWO_RANKS = ("--trainer.devices", "2", "--trainer.strategy", "ddp")


def run_commands(commands: Commands) -> None:
    """Run command lines of visattn in this process."""
    for arguments in commands:
        assert main(list(arguments)) == 0, arguments


def run_on_two_ranks(
    commands: Commands, folder: Path, *, strategy: str = "ddp", seconds: float = 600
) -> None:
    """Run command lines of visattn in two processes of one process group.

    Raises:
        RuntimeError: If one of them fails.
    """
    file = folder / "commands.json"
    ranks = ("--trainer.devices", "2", "--trainer.strategy", strategy)
    file.write_text(json.dumps([[*arguments, *ranks] for arguments in commands]))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
    ran = subprocess.run(
        [sys.executable, "-m", "rank_commands", str(file)],
        cwd=folder,
        env={**environment(), **address, "WORLD_SIZE": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(ran.stdout)


def run_as_ranks(commands: Commands) -> int:
    """Run command lines as rank 0, and in a process forked off as rank 1; return the exit code."""
    other = os.fork()
    rank = 0 if other else 1
    vars(rank_zero_only).update(rank=rank)
    os.environ["LOCAL_RANK"] = str(rank)
    code = 1
    try:
        run_commands(commands)
        code = 0
    except BaseException:
        if not other:
            traceback.print_exc()  # os._exit below would say nothing of it
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if not other:
            os._exit(code)  # any error: a fork has nothing to clean up
    return os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])


def environment() -> dict[str, str]:
    """Return an environment in which Python finds the package and this folder."""
    paths = [str(ROOT), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VISATTN_TRUST_MODULES": "training_log",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    commands = json.loads(Path(sys.argv[1]).read_text())
    sys.argv = ["visattn"]
    sys.exit(run_as_ranks(commands))
