"""Normalized loop states: one of three kinds, whatever hook the checkpoint was written in."""

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from visattn.training.checkpoint import normalize_loop_state

NAMES: tuple[str, ...] = ("ready", "started", "processed", "completed")
STEPS = "epoch_loop.automatic_optimization.optim_progress"


@pytest.fixture(autouse=True)
def _any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def counts(*numbers: int) -> dict[str, dict[str, int]]:
    progress = dict(zip(NAMES, numbers, strict=True))
    return {"total": dict(progress), "current": dict(progress)}


def loops(epoch: tuple[int, ...], batch: tuple[int, ...], *, last: bool = False) -> dict[str, Any]:
    return {
        "state_dict": {"combined_loader": [{"epoch": epoch[2], "batches_done": batch[0]}]},
        "epoch_progress": counts(*epoch),
        "epoch_loop.state_dict": {"_batches_that_stepped": 10},
        "epoch_loop.batch_progress": {**counts(*batch), "is_last_batch": last},
        "epoch_loop.scheduler_progress": counts(5, 5, 5, 5),
        STEPS: {"optimizer": {"step": counts(5, 5, 5, 5)}},
        "epoch_loop.val_loop.batch_progress": counts(3, 3, 3, 3),
    }  # fmt: skip


def trainer(*, due: bool = False, validating: tuple[int, int] | None = None) -> Any:
    current = SimpleNamespace(ready=(validating or (3, 3))[0], completed=(validating or (3, 3))[1])
    progress = SimpleNamespace(current=current)
    epoch_loop = SimpleNamespace(
        _should_check_val_fx=lambda _: due, val_loop=SimpleNamespace(batch_progress=progress)
    )
    loop = SimpleNamespace(
        epoch_loop=epoch_loop, _data_fetcher=None, _should_accumulate=lambda: False
    )
    return SimpleNamespace(
        fit_loop=loop, validating=validating is not None, max_steps=-1, enable_validation=True,
        check_val_every_n_epoch=1, val_check_batch=7, current_epoch=0,
    )  # fmt: skip


def summarize(state: dict[str, Any]) -> tuple[Any, ...]:
    """Return epoch and batch counts, whether a validation is due, and two step counts."""
    epoch, batch = state["epoch_progress"], state["epoch_loop.batch_progress"]
    validation = state["epoch_loop.val_loop.batch_progress"]
    due = validation["total"]["started"] == validation["total"]["processed"] + 1
    assert validation["current"] == dict.fromkeys(NAMES, 0 if due else 3)
    assert batch["total"]["ready"] == batch["total"]["completed"]
    return (
        tuple(epoch["current"][name] for name in NAMES),
        set(batch["current"].values()),
        due,
        state["epoch_loop.state_dict"]["_batches_that_stepped"],
        state["state_dict"]["combined_loader"][0]["batches_done"],
    )


def normalized(state: dict[str, Any], owner: Any) -> tuple[Any, ...]:
    normalize_loop_state(state, owner)
    return summarize(state)


def test_a_batch_is_completed_in_its_end_hook() -> None:
    assert normalized(loops((3, 3, 2, 2), (4, 4, 4, 3)), trainer()) == (
        (3, 3, 2, 2),
        {4},
        False,
        11,
        4,
    )


def test_a_validation_after_the_batch_is_due() -> None:
    state = loops((3, 3, 2, 2), (7, 7, 7, 6), last=True)
    assert normalized(state, trainer(due=True)) == ((3, 3, 2, 2), {7}, True, 10, 7)


def test_within_a_validation_it_is_due_and_after_it_is_not() -> None:
    state = loops((3, 3, 2, 2), (7, 7, 7, 7), last=True)
    assert normalized(state, trainer(validating=(2, 1))) == ((3, 3, 2, 2), {7}, True, 10, 7)
    state = loops((3, 3, 2, 2), (7, 7, 7, 7), last=True)
    assert normalized(state, trainer(validating=(3, 3))) == ((3, 3, 2, 2), {7}, False, 10, 7)


def test_a_completed_epoch_stays_completed() -> None:
    state = loops((3, 3, 3, 2), (7, 7, 7, 7), last=True)
    assert normalized(state, trainer()) == ((3, 3, 3, 3), {0}, False, 10, 7)
    assert normalized(state, trainer()) == ((3, 3, 3, 3), {0}, False, 10, 0)  # once more


def test_an_interrupted_epoch_is_not_completed() -> None:
    state = loops((3, 3, 3, 3), (4, 4, 4, 4))
    assert normalized(state, trainer()) == ((3, 3, 2, 2), {4}, False, 10, 4)


def test_an_interrupted_batch_is_repeated() -> None:
    state = loops((3, 3, 2, 2), (5, 5, 4, 4))
    assert normalized(state, trainer()) == ((3, 3, 2, 2), {4}, False, 10, 4)


def test_the_private_hooks_of_lightning_exist() -> None:
    assert callable(_FitLoop._should_accumulate)
    assert callable(_TrainingEpochLoop._should_check_val_fx)
