"""Saved states of the loops: each says one of three things, wherever it was written."""

from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from visattn.training.checkpoint.loop_state import settle

NAMES: tuple[str, ...] = ("ready", "started", "processed", "completed")
STEPS = "epoch_loop.automatic_optimization.optim_progress"


@pytest.fixture(autouse=True)
def _any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def counts(*numbers: int) -> dict[str, dict[str, int]]:
    told = dict(zip(NAMES, numbers, strict=True))
    return {"total": dict(told), "current": dict(told)}


def loops(epoch: tuple[int, ...], batch: tuple[int, ...], *, last: bool = False) -> dict[str, Any]:
    return {
        "state_dict": {"combined_loader": [{"epoch": epoch[2], "done": batch[0]}]},
        "epoch_progress": counts(*epoch),
        "epoch_loop.state_dict": {"_batches_that_stepped": 10},
        "epoch_loop.batch_progress": {**counts(*batch), "is_last_batch": last},
        "epoch_loop.scheduler_progress": counts(5, 5, 5, 5),
        STEPS: {"optimizer": {"step": counts(5, 5, 5, 5)}},
        "epoch_loop.val_loop.batch_progress": counts(3, 3, 3, 3),
    }  # fmt: skip


def trainer(*, due: bool = False, validating: tuple[int, int] | None = None) -> Any:
    seen = SimpleNamespace(ready=(validating or (3, 3))[0], completed=(validating or (3, 3))[1])
    progress = SimpleNamespace(current=seen)
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


def told(state: dict[str, Any]) -> tuple[Any, ...]:
    """The epoch, the batches and whether a validation is due, in short."""
    epoch, batch = state["epoch_progress"], state["epoch_loop.batch_progress"]
    seen = state["epoch_loop.val_loop.batch_progress"]
    due = seen["total"]["started"] == seen["total"]["processed"] + 1
    assert seen["current"] == dict.fromkeys(NAMES, 0 if due else 3)
    assert batch["total"]["ready"] == batch["total"]["completed"]
    return (
        tuple(epoch["current"][name] for name in NAMES),
        set(batch["current"].values()),
        due,
        state["epoch_loop.state_dict"]["_batches_that_stepped"],
        state["state_dict"]["combined_loader"][0]["done"],
    )


def settled(state: dict[str, Any], of: Any) -> tuple[Any, ...]:
    settle(state, of)
    return told(state)


def test_at_the_end_of_a_batch_it_is_done() -> None:
    assert settled(loops((3, 3, 2, 2), (4, 4, 4, 3)), trainer()) == (
        (3, 3, 2, 2),
        {4},
        False,
        11,
        4,
    )


def test_where_a_validation_follows_it_is_due() -> None:
    state = loops((3, 3, 2, 2), (7, 7, 7, 6), last=True)
    assert settled(state, trainer(due=True)) == ((3, 3, 2, 2), {7}, True, 10, 7)


def test_within_a_validation_it_is_due_and_after_it_is_not() -> None:
    state = loops((3, 3, 2, 2), (7, 7, 7, 7), last=True)
    assert settled(state, trainer(validating=(2, 1))) == ((3, 3, 2, 2), {7}, True, 10, 7)
    state = loops((3, 3, 2, 2), (7, 7, 7, 7), last=True)
    assert settled(state, trainer(validating=(3, 3))) == ((3, 3, 2, 2), {7}, False, 10, 7)


def test_an_epoch_that_is_over_is_over() -> None:
    state = loops((3, 3, 3, 2), (7, 7, 7, 7), last=True)
    assert settled(state, trainer()) == ((3, 3, 3, 3), {0}, False, 10, 7)
    assert settled(state, trainer()) == ((3, 3, 3, 3), {0}, False, 10, 0)  # once more


def test_an_epoch_that_was_broken_off_is_not_over() -> None:
    state = loops((3, 3, 3, 3), (4, 4, 4, 4))
    assert settled(state, trainer()) == ((3, 3, 2, 2), {4}, False, 10, 4)


def test_in_the_middle_of_a_batch_it_is_still_to_be_done() -> None:
    state = loops((3, 3, 2, 2), (5, 5, 4, 4))
    assert settled(state, trainer()) == ((3, 3, 2, 2), {4}, False, 10, 4)


def test_what_is_used_of_lightning_is_still_there() -> None:
    assert callable(_FitLoop._should_accumulate)
    assert callable(_TrainingEpochLoop._should_check_val_fx)
