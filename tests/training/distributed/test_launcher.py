"""How processes are started and watched: how long they wait, and what is said of one that fails."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.distributed import constants

from visattn.training.distributed import launcher as launches
from visattn.training.distributed.launcher import (
    ChildMonitor,
    WatchedLauncher,
    end_children,
    keep_watch,
)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes: one sleeps, one waits to be told its exit code."""
    code = "import sys; sys.exit(int(input()))"
    started = [
        subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE)
        for words in ("import time; time.sleep(600)", code)
    ]
    launches._children.extend(started)
    yield started
    end_children(seconds=0)
    for one in started:
        one.communicate()


def say(child: subprocess.Popen[bytes], code: int) -> None:
    child.communicate(f"{code}\n".encode())


def test_processes_wait_as_long_as_they_are_told() -> None:
    strategy = DDPStrategy()
    assert strategy._timeout == constants.default_pg_timeout  # else it would be kept
    keep_watch(strategy)
    assert strategy._timeout == timedelta(seconds=300)
    own = DDPStrategy(timeout=timedelta(seconds=7))
    keep_watch(own, seconds=20)
    assert own._timeout == timedelta(seconds=7)
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"--timeout must be 1 to .*, got {seconds}"):
            keep_watch(strategy, seconds=seconds)


def test_only_where_it_must_ddp_looks_for_parameters_at_rest() -> None:
    busy, idle, told = DDPStrategy(), DDPStrategy(), DDPStrategy(find_unused_parameters=False)
    keep_watch(busy)
    for strategy in (idle, told):
        keep_watch(strategy, idle=True)
    found = [one._ddp_kwargs.get("find_unused_parameters") for one in (busy, idle, told)]
    assert found == [None, True, False]


def test_what_starts_processes_is_watched_and_what_does_not_stays() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
    keep_watch(trainer.strategy)
    launcher = trainer.strategy.launcher
    assert isinstance(launcher, WatchedLauncher)
    assert launcher.num_processes == 2
    keep_watch(SingleDeviceStrategy())


def test_a_process_that_fails_is_named(children: list[subprocess.Popen[bytes]]) -> None:
    watch = ChildMonitor(children)
    assert watch.failed() is None
    say(children[1], 3)
    said = watch.failed()
    assert said is not None
    assert said.startswith(f"rank 2 on this host (process {children[1].pid}) ended with code 3;")
    children[0].kill()
    children[0].wait()
    assert "rank 1 on this host" in (watch.failed() or "")
    assert "ended with signal 9" in (watch.failed() or "")


@pytest.mark.parametrize("code", [0, 130, 143])
def test_a_process_that_was_told_to_stop_has_not_failed(
    children: list[subprocess.Popen[bytes]], code: int
) -> None:
    say(children[1], code)
    assert ChildMonitor(children).failed() is None


def test_who_does_not_notice_is_ended_and_so_are_the_others(
    children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(launches.os, "_exit", codes.append)
    say(children[1], 1)
    ChildMonitor(children, grace=0).run()
    assert codes == [1]
    assert children[0].returncode == -9
    said = capsys.readouterr().err
    assert said.startswith("visattn: rank 2 on this host")
    assert "--ckpt_path last" in said


def test_a_watch_ends_with_those_it_watches(children: list[subprocess.Popen[bytes]]) -> None:
    say(children[1], 0)
    ChildMonitor(children[1:]).run()
