"""Training on two hosts: network namespaces, and a link that is cut during a run."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from network_hosts import Hosts, reason_without_hosts
from task_configs import write_task_configs

SECONDS = 30  # of the time-out; a busy machine takes long to start
WORDS = (
    "fit --config digits.yaml --run run --data.batch_size 3 --trainer.num_nodes 2 "
    f"--trainer.devices 1 --trainer.strategy ddp --timeout {SECONDS}"
).split()

pytestmark = pytest.mark.hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if reason := reason_without_hosts():
        pytest.skip(reason)
    made = Hosts()
    try:
        made.put_up()
        yield made
    finally:
        made.take_down()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_task_configs(tmp_path)
    return tmp_path


def last_step(folder: Path) -> int:
    """Return the step of the last checkpoint; -1 without one."""
    path = folder / "run" / "checkpoints" / "last.ckpt"
    return int(torch.load(path)["global_step"]) if path.exists() else -1


def wait_for_step(folder: Path, step: int, started: list[subprocess.Popen[str]]) -> None:
    until = time.monotonic() + 300
    while last_step(folder) < step:
        if time.monotonic() > until or any(process.poll() is not None for process in started):
            for process in started:
                process.kill()
            pytest.fail("the run did not begin:\n" + "\n".join(ended(started, seconds=60)))
        time.sleep(0.5)


def ended(started: list[subprocess.Popen[str]], *, seconds: float) -> list[str]:
    return [process.communicate(timeout=seconds)[0] for process in started]


def test_run_ends_when_the_link_is_cut_and_resumes_afterwards(hosts: Hosts, folder: Path) -> None:
    started = hosts.torchrun([*WORDS, "--trainer.max_epochs", "100000"], folder)
    wait_for_step(folder, 6, started)
    hosts.cut()
    cut = time.monotonic()
    first, second = ended(started, seconds=SECONDS + 120)
    took = time.monotonic() - cut
    assert [process.returncode for process in started] == [1, 1]
    assert took < SECONDS + 30
    messages = [re.findall(r"visattn: (another process .*)", said) for said in (first, second)]
    assert len(messages[0]) == len(messages[1]) == 1
    assert all(
        "of the run ended or was not reached within --timeout" in process[0] for process in messages
    )
    assert all("--ckpt_path last" in process[0] for process in messages)
    stopped = last_step(folder)

    hosts.mend()
    epochs = torch.load(folder / "run" / "checkpoints" / "last.ckpt")["epoch"] + 3
    again = [*WORDS, "--ckpt_path", "last", "--trainer.max_epochs", str(epochs)]
    started = hosts.torchrun(again, folder)
    said = ended(started, seconds=300)
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    assert last_step(folder) > stopped


def test_hosts_without_torchrun_count_each_sample_once(hosts: Hosts, folder: Path) -> None:
    words = [*WORDS, "--trainer.max_epochs", "1"]
    started = hosts.plain(words, folder)
    said = ended(started, seconds=300)
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    diaries = [json.loads(path.read_text()) for path in (folder / "run" / "diary").glob("*.json")]
    assert sorted(sum(map(len, process["validated"])) for process in diaries) == [5, 6]


def test_missing_host_is_reported(hosts: Hosts, folder: Path) -> None:
    (alone,) = hosts.plain(WORDS, folder, ranks=(0,))
    (said,) = ended([alone], seconds=SECONDS + 120)
    assert alone.returncode == 1
    assert "the processes of the run did not find each other" in said
    assert "--timeout" in said


def test_host_with_different_files_is_refused_before_the_first_step(
    hosts: Hosts, folder: Path
) -> None:
    other = folder / "other"
    other.mkdir()
    write_task_configs(other)
    (other / "digits.yaml").write_text(
        (folder / "digits.yaml").read_text().replace("validation: 11", "validation: 10")
    )
    started = hosts.plain(WORDS, folder, other)
    first, second = ended(started, seconds=300)
    assert [process.returncode for process in started] == [1, 1]
    assert re.search(r"visattn: all processes must have the same data: rank 0 .* rank 1 ", first)
    assert "visattn:" not in second
