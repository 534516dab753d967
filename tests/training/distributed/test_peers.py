"""Runs of several processes: equal data sets, and errors of lost processes."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from lightning import LightningModule, Trainer
from torch import distributed

from visattn.data.loading.samplers import DistributedEvalSampler
from visattn.training.distributed import launcher
from visattn.training.distributed.launcher import SameDataCheck, is_peer_lost, report_lost_peers

LOST = (
    "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.1.1]:4711",
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation",
    "recvValueWithTimeout failed on SocketImpl(fd=3)",
    "NCCL communicator was aborted on rank 0.",
)


MODULE = Mock(spec=LightningModule)


def trainer(count: int, *, rank: int = 0, world: int = 2, **limits: int) -> Any:
    def loader() -> Any:
        sampler = DistributedEvalSampler(count, rank=rank, num_replicas=world)
        return SimpleNamespace(dataset=range(count), sampler=sampler)

    return Mock(
        spec=Trainer,
        world_size=world,
        global_rank=rank,
        is_global_zero=rank == 0,
        datamodule=SimpleNamespace(train_dataloader=loader, val_dataloader=loader),
        **limits,
    )


@pytest.fixture
def other_ranks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Sample counts and errors that the other processes send."""
    others: list[Any] = [({"train": 3, "val": 3}, "")]

    def gather(gathered: list[Any], own: Any) -> None:
        gathered[:] = [own, *others]

    monkeypatch.setattr(launcher.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(launcher.distributed, "all_gather_object", gather)
    monkeypatch.setattr(launcher, "failed_child", lambda: "rank 1 ended with code 3")
    return others


def test_a_process_without_samples_is_refused_once(other_ranks: list[Any]) -> None:
    check = SameDataCheck()
    with pytest.raises(
        ValueError, match="training: each of 2 processes needs a sample to evaluate, got 1"
    ):
        check.setup(trainer(1), MODULE, "fit")
    with pytest.raises(ValueError, match="validation: each of 2"):
        check.setup(trainer(1, limit_train_batches=0), MODULE, "fit")
    other_ranks[0] = ({}, "validation: each of 2 ...")
    with pytest.raises(SystemExit, match="1"):  # rank 0 prints the message
        check.setup(trainer(1, rank=1), MODULE, "fit")


def test_hosts_with_different_data_are_refused(other_ranks: list[Any]) -> None:
    other_ranks[0] = ({"train": 3, "val": 2}, "")
    message = r"rank 0 has \{'train': 3, 'val': 3\} samples, rank 1 has .*'val': 2"
    with pytest.raises(ValueError, match=message):
        SameDataCheck().setup(trainer(3), MODULE, "fit")


def test_equal_data_and_single_processes_are_accepted(other_ranks: list[Any]) -> None:
    SameDataCheck().setup(trainer(3), MODULE, "fit")
    SameDataCheck().setup(trainer(1, world=1), MODULE, "fit")


@pytest.mark.parametrize("message", LOST)
def test_errors_of_lost_processes_are_recognized(message: str) -> None:
    assert is_peer_lost(RuntimeError(message))
    assert is_peer_lost(distributed.DistStoreError(message))
    assert not is_peer_lost(ValueError(message))


@pytest.mark.parametrize("message", LOST)
def test_a_lost_process_of_this_host_is_named(message: str, other_ranks: list[Any]) -> None:
    expected = "^rank 1 ended with code 3; check its log, then rerun with --ckpt_path last$"
    with pytest.raises(ConnectionError, match=expected), report_lost_peers():
        raise RuntimeError(message)


def test_processes_that_never_met_get_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.time, "monotonic", iter(range(0, 1000, 3)).__next__)
    expected = r"did not find each other .*1/2 clients.*--timeout"
    with pytest.raises(ConnectionError, match=expected), report_lost_peers():
        raise distributed.DistStoreError("Timed out after 21 seconds. 1/2 clients joined.")
    expected = r"another process of the run ended or was not reached .*closed by peer.*ckpt_path"
    with pytest.raises(ConnectionError, match=expected), report_lost_peers():
        raise RuntimeError(LOST[0])


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), SystemExit(143)])
def test_other_errors_are_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, report_lost_peers():
        raise error
    assert raised.value is error
