"""Every way in which several processes are started, and what is said when one of them is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from network_hosts import VISATTN
from rank_stories import TOGETHER, environment
from told_tasks import write_tasks

WORDS = ("fit", "--config", "digits.yaml", "--data.batch", "3", "--run", "run")
MODULE = (sys.executable, "-m", "visattn")
CONSOLE = (str(Path(sys.executable).parent / "visattn"),)
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
    *VISATTN,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tasks(tmp_path)
    return tmp_path


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(process: int) -> list[int]:
    told = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in told.split()]


def test_a_killed_process_is_named_and_the_run_ends(folder: Path) -> None:
    """Started by `python -m visattn`, stopped by force: as when memory runs out."""
    endless = ("--trainer.max_epochs", "1000000", "--save_steps", "3")
    started = start(folder, *MODULE, *WORDS, *TOGETHER, *endless)
    last = folder / "run" / "checkpoints" / "last.ckpt"
    until = time.monotonic() + 240
    while not last.exists() and started.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    (other,) = children(started.pid)
    os.kill(other, signal.SIGKILL)
    said, _ = started.communicate(timeout=120)
    assert started.returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("visattn:")]
    assert line.startswith("visattn: rank 0 of 2 stopped: rank 1 (")
    assert f"process {other})" in line
    assert line.endswith("say the same command with --ckpt_path last")
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("command", [CONSOLE, MODULE, TORCHRUN], ids=["console", "-m", "torchrun"])
def test_two_processes_train_together(folder: Path, command: tuple[str, ...]) -> None:
    started = start(folder, *command, *WORDS, *TOGETHER)
    said, _ = started.communicate(timeout=300)
    assert started.returncode == 0, said
    assert {path.name for path in (folder / "run" / "diary").iterdir()} == {"0.json", "1.json"}


@pytest.mark.slow
@pytest.mark.parametrize("command", [MODULE, TORCHRUN], ids=["-m", "torchrun"])
def test_a_process_with_nothing_to_evaluate_is_refused_once(
    folder: Path, command: tuple[str, ...]
) -> None:
    config = folder / "digits.yaml"
    config.write_text(config.read_text().replace("validation: 11", "validation: 1"))
    started = start(folder, *command, *WORDS, *TOGETHER)
    said, _ = started.communicate(timeout=300)
    assert started.returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("visattn:")]
    assert line.startswith("visattn: validation: each of 2 processes needs a sample, got 1")


@pytest.mark.slow
def test_torchrun_starts_again_what_was_killed(folder: Path) -> None:
    again = list(TORCHRUN)
    again[again.index("--standalone") :] = ["--max-restarts", "2", *TORCHRUN[3:]]
    words = (*WORDS, *TOGETHER, "--trainer.max_epochs", "60", "--save_steps", "3")
    started = start(folder, *again, *words, "--ckpt_path", "last")
    last = folder / "run" / "checkpoints" / "last.ckpt"
    until = time.monotonic() + 240
    while not last.exists() and started.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    first, _ = children(started.pid)
    os.kill(first, signal.SIGKILL)
    said, _ = started.communicate(timeout=500)
    assert started.returncode == 0, said
    assert "goes on from" in said
    assert "`max_epochs=60` reached" in said
