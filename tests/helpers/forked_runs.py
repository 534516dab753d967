"""Command lines of visattn in processes of their own, of which Lightning is imported once.

`python forked_runs.py` reads a request per line and forks a process for each rank that it asks for.
So a test can really kill what it started, and pays for the import only once.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).parent
ROOT = HELPERS.parents[1]
TRUSTED = "task_runs"


class ForkedRuns:
    """A server that forks runs; `close` ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_of_runs(),
        )

    def run(
        self, folder: Path, *words: str, processes: int = 1, **broken: str
    ) -> tuple[list[int], str]:
        """Run a command line in a folder, in an environment with BREAK, say.

        Return the exit code of each process, and their output.
        """
        if processes > 1:
            words = (*words, "--trainer.devices", str(processes), "--trainer.strategy", "ddp")
        request = {"folder": str(folder), "words": words, "processes": processes}
        request["environment"] = broken
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("forked runs need pipes for requests and replies")
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        return reply["codes"], reply["said"]

    def close(self) -> None:
        """End the server."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.process.wait(30)


def environment_of_runs() -> dict[str, str]:
    """Return the environment in which a run finds the package and this folder."""
    paths = [str(ROOT), str(HELPERS), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VISATTN_TRUST_MODULES": TRUSTED,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from visattn.training import cli  # noqa: F401 (forks share the slow import)

    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run a request and return exit codes and output; a code below 0 is a signal."""
    port = str(free_port())
    folder = Path(request["folder"])
    logs = [folder / f"said-{rank}.txt" for rank in range(request["processes"])]
    children = [forked(request, rank, port, log) for rank, log in enumerate(logs)]
    codes: dict[int, int] = {}
    until = time.monotonic() + 300
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for child in set(children) - set(codes):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    said = "\n".join(log.read_text(errors="replace") for log in logs)
    return {"codes": [codes[child] for child in children], "said": said}


def forked(request: dict[str, Any], rank: int, port: str, log: Path) -> int:
    """Fork a process of a run; in that process this never returns."""
    if child := os.fork():
        return child
    code = 70
    try:
        handle = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        if request["processes"] > 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
            os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["processes"])}
        from lightning.pytorch.utilities import rank_zero_only

        from visattn.cli import main

        rank_zero_only.rank = rank  # type: ignore[attr-defined]
        sys.argv = ["visattn"]
        code = main(list(request["words"]))
    except BaseException:  # noqa: BLE001 (the process ends here, whatever it was)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


if __name__ == "__main__":
    serve()
    os._exit(0)  # the last search for garbage takes half a minute on a busy machine
