"""What is said when a process has nothing to do, sees other data, or is lost."""

import os
import re
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from lightning import LightningModule, Trainer
from rank_stories import free_port
from torch import distributed

from visattn.data.loading.samplers import DistributedEvalSampler
from visattn.training.distributed import peers
from visattn.training.distributed import peers as heartbeats
from visattn.training.distributed.peers import LifeSigns, PeerMonitor, losses_told, peer_lost

LOST = (
    "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.1.1]:4711",
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation",
    "recvValueWithTimeout failed on SocketImpl(fd=3)",
    "NCCL communicator was aborted on rank 0.",
)


MODULE = Mock(spec=LightningModule)


def trainer(count: int, *, rank: int = 0, world: int = 2, **limits: int) -> Any:
    def loader() -> Any:
        order = DistributedEvalSampler(count, rank=rank, world=world)
        return SimpleNamespace(dataset=range(count), sampler=order)

    return Mock(
        spec=Trainer,
        world_size=world,
        global_rank=rank,
        is_global_zero=rank == 0,
        datamodule=SimpleNamespace(train_dataloader=loader, val_dataloader=loader),
        **limits,
    )


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the other process says when all meet; nobody's heart beats."""
    other: list[Any] = [("there, process 2", {"train": 3, "val": 3}, None)]

    def gather(every: list[Any], own: Any) -> None:
        every[:] = [own, *other]

    monkeypatch.setattr(peers.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(peers.distributed, "all_gather_object", gather)
    monkeypatch.setattr(LifeSigns, "start", lambda self: None)
    return other


def test_a_process_with_nothing_to_evaluate_is_refused_once(meeting: list[Any]) -> None:
    said = "training: each of 2 processes needs a sample, got 1"
    with pytest.raises(ValueError, match=said):
        PeerMonitor().setup(trainer(1), MODULE, "fit")
    with pytest.raises(ValueError, match="validation: each of 2"):
        PeerMonitor().setup(trainer(1, limit_train_batches=0), MODULE, "fit")
    meeting[0] = ("there, process 2", {}, "validation: each of 2 ...")
    with pytest.raises(SystemExit, match="1"):  # the first says it for all
        PeerMonitor().setup(trainer(1, rank=1), MODULE, "fit")


def test_hosts_with_different_data_are_refused(meeting: list[Any]) -> None:
    meeting[0] = ("there, process 2", {"train": 3, "val": 2}, None)
    said = r"rank 0 \(.*\) has \{'train': 3, 'val': 3\}, rank 1 \(there, process 2\) has .*'val': 2"
    with pytest.raises(ValueError, match=said):
        PeerMonitor().setup(trainer(3), MODULE, "fit")


def test_data_that_are_alike_go_on(meeting: list[Any]) -> None:
    met = PeerMonitor()
    met.setup(trainer(3), MODULE, "fit")
    assert met.homes[0].endswith(f"process {os.getpid()}")
    assert met.homes[1] == "there, process 2"
    alone = PeerMonitor()
    alone.setup(trainer(1, world=1), MODULE, "fit")
    assert alone.hearts is None


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        ([1], "rank 0 of 3 stopped: rank 1 (b) ended or cannot be reached; look"),
        ([1, 2], "rank 0 of 3 stopped: rank 1 (b) and rank 2 (c) ended or cannot be reached; look"),
        (None, "rank 0 of 3 stopped: rank 0 (a) ended or cannot be reached, and with it what"),
        ([], "rank 0 of 3 stopped: all processes live, but within the time-out not all came"),
    ],
)
def test_a_lost_process_is_named_with_what_to_do(
    silent: list[int] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = PeerMonitor()
    met.homes, met.hearts = ["a", "b", "c"], LifeSigns(0, 3)
    monkeypatch.setattr(LifeSigns, "silent", lambda self: silent)
    error = RuntimeError(LOST[0])
    met.on_exception(trainer(3, world=3), MODULE, error)
    with pytest.raises(ConnectionError, match=re.escape(said)) as raised, losses_told():
        raise error
    assert "--ckpt_path last" in str(raised.value)
    assert met.hearts is None


@pytest.mark.parametrize("said", LOST)
def test_errors_of_lost_processes_are_known(said: str) -> None:
    assert peer_lost(RuntimeError(said))
    assert peer_lost(distributed.DistStoreError(said))
    assert not peer_lost(ValueError(said))


def test_those_who_never_met_are_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    said = r"did not find each other .*1/2 clients.*--timeout"
    with pytest.raises(ConnectionError, match=said), losses_told():
        raise distributed.DistStoreError("Timed out after 21 seconds. 1/2 clients joined.")
    monkeypatch.setattr(peers, "failed_child", lambda: "rank 1 ended with code 3")
    with pytest.raises(ConnectionError, match="rank 1 ended with code 3"), losses_told():
        raise distributed.DistStoreError("Timed out after 21 seconds. 1/2 clients joined.")


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), SystemExit(143)])
def test_other_errors_stay_what_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, losses_told():
        raise error
    assert raised.value is error


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_EVERY", 0.02), ("_WATCHED", 0.5), ("_PATIENCE", 20.0)):
        monkeypatch.setattr(heartbeats, name, seconds)


def test_who_gives_no_sign_of_life_is_found(quickly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    store = heartbeats.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    hearts = [LifeSigns(rank, 3) for rank in (0, 1, 2)]
    for one in hearts[:2]:
        one.start()
    store.set_timeout(timedelta(seconds=20))
    store.wait(["visattn/alive/0", "visattn/alive/1"])
    assert hearts[0].silent() == [2]
    assert hearts[2].silent() == []
    hearts[1].stop()
    hearts[1].join()
    assert hearts[0].silent() == [1, 2]
    hearts[0].stop()
    hearts[0].join()


def test_a_question_that_nobody_answers_ends(
    quickly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(heartbeats, "_PATIENCE", 0.1)
    monkeypatch.setattr(LifeSigns, "_ask", lambda self: [over.wait(30)])
    assert LifeSigns(1, 2).silent() is None
    over.set()
