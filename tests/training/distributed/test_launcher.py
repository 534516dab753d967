"""Time-outs, the launcher of a DDP strategy, and child processes that fail."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from lightning import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.distributed import constants

from visattn.training.distributed import launcher
from visattn.training.distributed.launcher import (
    ChildLauncher,
    configure_strategy,
    failed_child,
    terminate_children,
)

Children = list[subprocess.Popen[bytes]]


@pytest.fixture
def children() -> Iterator[Children]:
    """Two processes: one sleeps, one reads its exit code."""
    read_code = "import sys; sys.exit(int(input()))"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        for code in ("import time; time.sleep(600)", read_code)
    ]
    launcher._children.extend(started)
    yield started
    terminate_children(seconds=0)
    for child in started:
        child.communicate()


def exit_with(child: subprocess.Popen[bytes], code: int) -> None:
    child.communicate(f"{code}\n".encode())


def test_a_strategy_gets_the_timeout_unless_it_has_one() -> None:
    strategy = DDPStrategy()
    assert strategy._timeout == constants.default_pg_timeout  # else it would be kept
    configure_strategy(strategy)
    assert strategy._timeout == timedelta(seconds=300)
    own = DDPStrategy(timeout=timedelta(seconds=7))
    configure_strategy(own, timeout=20)
    assert own._timeout == timedelta(seconds=7)
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"--timeout must be 1 to .*, got {seconds}"):
            configure_strategy(strategy, timeout=seconds)


def test_find_unused_parameters_is_set_only_where_it_is_needed() -> None:
    default, needed, explicit = (
        DDPStrategy(), DDPStrategy(), DDPStrategy(find_unused_parameters=False),
    )  # fmt: skip
    configure_strategy(default)
    for strategy in (needed, explicit):
        configure_strategy(strategy, find_unused_parameters=True)
    values = [
        strategy._ddp_kwargs.get("find_unused_parameters")
        for strategy in (default, needed, explicit)
    ]
    assert values == [None, True, False]


def test_the_launcher_of_a_ddp_strategy_is_replaced() -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)
    configure_strategy(trainer.strategy)
    replaced = trainer.strategy.launcher
    assert isinstance(replaced, ChildLauncher)
    assert replaced.num_processes == 2
    configure_strategy(SingleDeviceStrategy())


def test_a_failed_process_is_named(children: Children) -> None:
    assert failed_child() == ""
    exit_with(children[1], 3)
    assert failed_child() == (f"rank 2 on this host (process {children[1].pid}) ended with code 3")
    children[0].kill()
    children[0].wait()
    assert failed_child().startswith("rank 1 on this host")
    assert failed_child().endswith("ended with signal 9")


@pytest.mark.parametrize("code", [0, 130, 143])
def test_a_process_that_was_stopped_has_not_failed(children: Children, code: int) -> None:
    exit_with(children[1], code)
    assert failed_child() == ""


def test_children_that_do_not_end_are_killed(children: Children) -> None:
    exit_with(children[1], 0)
    terminate_children(seconds=0)
    assert [child.returncode for child in children] == [-9, 0]
