"""Starting several processes with the command, `python -m` and torchrun; killed processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from network_hosts import VISATTN
from rank_commands import TWO_RANKS, environment
from task_configs import write_task_configs

WORDS = ("fit", "--config", "digits.yaml", "--data.batch_size", "3", "--run", "run")
MODULE = (sys.executable, "-m", "visattn")
CONSOLE = (str(Path(sys.executable).parent / "visattn"),)
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
    *VISATTN,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_task_configs(tmp_path)
    return tmp_path


def start(folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


def test_a_killed_process_is_named_and_the_run_ends(folder: Path) -> None:
    """The process is killed by SIGKILL, as when memory runs out."""
    endless = ("--trainer.max_epochs", "1000000", "--save_steps", "3")
    started = start(folder, *MODULE, *WORDS, *TWO_RANKS, *endless)
    last = folder / "run" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 240
    while not last.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    (other,) = children(started.pid)
    os.kill(other, signal.SIGKILL)
    output, _ = started.communicate(timeout=120)
    assert started.returncode == 1
    (line,) = [line for line in output.splitlines() if line.startswith("visattn:")]
    assert line.startswith("visattn: rank 1 on this host (")
    assert f"process {other}) ended with signal 9" in line
    assert line.endswith("then rerun with --ckpt_path last")
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("command", [CONSOLE, MODULE, TORCHRUN], ids=["console", "-m", "torchrun"])
def test_two_processes_train_together(folder: Path, command: tuple[str, ...]) -> None:
    started = start(folder, *command, *WORDS, *TWO_RANKS)
    output, _ = started.communicate(timeout=300)
    assert started.returncode == 0, output
    assert {path.name for path in (folder / "run" / "diary").iterdir()} == {"0.json", "1.json"}


@pytest.mark.slow
@pytest.mark.parametrize("command", [MODULE, TORCHRUN], ids=["-m", "torchrun"])
def test_too_few_validation_samples_are_reported_once(
    folder: Path, command: tuple[str, ...]
) -> None:
    config = folder / "digits.yaml"
    config.write_text(config.read_text().replace("val: 11", "val: 1"))
    started = start(folder, *command, *WORDS, *TWO_RANKS)
    output, _ = started.communicate(timeout=300)
    assert started.returncode == 1
    (line,) = [line for line in output.splitlines() if line.startswith("visattn:")]
    assert line.startswith(
        "visattn: validation: each of 2 processes needs a sample to evaluate, got 1"
    )


@pytest.mark.slow
def test_torchrun_restarts_a_killed_run(folder: Path) -> None:
    command = list(TORCHRUN)
    command[command.index("--standalone") :] = ["--max-restarts", "2", *TORCHRUN[3:]]
    words = (*WORDS, *TWO_RANKS, "--trainer.max_epochs", "60", "--save_steps", "3")
    separate = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as docs/guides/training.md says
    started = start(folder, *command, *words, "--ckpt_path", "last", **separate)
    last = folder / "run" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 240
    while not last.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    first, _ = children(started.pid)
    os.kill(first, signal.SIGKILL)
    output, _ = started.communicate(timeout=500)
    assert started.returncode == 0, output
    assert "resumes from" in output
    assert "`max_epochs=60` reached" in output
