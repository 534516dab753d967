"""Command lines told one after the other, by one process or by each of two.

`python -m rank_stories FILE` tells those in a JSON file, as two ranks; Lightning is imported once.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from visattn.training.cli.lightning_cli import TrainingCLI, main

Stories = Sequence[Sequence[str]]
ROOT, HELPERS = Path(__file__).parents[2], Path(__file__).parent
TOGETHER = ("--trainer.devices", "2", "--trainer.strategy", "ddp")


class Unsaved(TrainingCLI):
    """The command line that keeps no config: it takes less time."""

    def before_instantiate_classes(self) -> None:
        super().before_instantiate_classes()
        self.save_config_callback = None


def tell(stories: Stories) -> None:
    """Run command lines of visattn in this process."""
    for words in stories:
        main(list(words), kind=Unsaved)


def tell_in_two(stories: Stories, folder: Path, *, seconds: float = 600) -> None:
    """Run command lines of visattn in two processes that meet.

    Raises:
        RuntimeError: If one of them fails.
    """
    file = folder / "stories.json"
    file.write_text(json.dumps([[*words, *TOGETHER] for words in stories]))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
    ran = subprocess.run(
        [sys.executable, "-m", "rank_stories", str(file)],
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


def tell_as_ranks(stories: Stories) -> int:
    """Run command lines as rank 0, and in a process forked off as rank 1; return the exit code."""
    other = os.fork()
    rank = 0 if other else 1
    vars(rank_zero_only).update(rank=rank)
    os.environ["LOCAL_RANK"] = str(rank)
    code = 1
    try:
        tell(stories)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if not other:
            os._exit(code)  # whatever was raised: a fork has nothing to clean up
    return os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])


def environment() -> dict[str, str]:
    """Return the environment in which a process of ours finds the package and this folder."""
    paths = [str(ROOT), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VISATTN_TRUST_MODULES": "run_diaries",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    sys.argv = ["visattn"]
    sys.exit(tell_as_ranks(given))
