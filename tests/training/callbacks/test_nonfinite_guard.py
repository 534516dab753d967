"""Skipped steps change nothing; too many in a row stop training and report the cause."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from visattn.training.callbacks.guards import SkipNonFiniteSteps
from visattn.training.checkpoint import check_weights_before_saving
from visattn.training.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")


class NormalizedMLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


class Small(Task):
    """Regression to zero on random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(NormalizedMLP())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.1, momentum=0.9)


class RecordStates(Callback):
    """The weights and statistics after each batch."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        self.states.append({k: v.clone() for k, v in pl_module.model.state_dict().items()})


def fit(
    guard: SkipNonFiniteSteps, nonfinite: dict[int, float], folder: Path, **options: Any
) -> list[Any]:
    """Train on seven batches, some of which hold a non-finite number."""
    batches = torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(1))
    for number, value in nonfinite.items():
        batches[number, 2, 1] = value
    recorder = RecordStates()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[guard, recorder],
        **options,
    )
    loader: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    trainer.fit(Small(), loader)
    return recorder.states


def states_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_a_nonfinite_step_changes_nothing(tmp_path: Path, value: float) -> None:
    """Weights and running statistics stay; an input of 1e30 makes the statistics infinite."""
    guard = SkipNonFiniteSteps()
    states = fit(guard, {3: value}, tmp_path)
    assert guard.skipped == 1
    assert guard.consecutive == 0
    assert states_equal(states[2], states[3])
    assert not states_equal(states[3], states[4])
    assert all(bool(tensor.isfinite().all()) for tensor in states[-1].values())


def test_finite_steps_are_unchanged_by_the_guard(tmp_path: Path) -> None:
    class NoGuard(SkipNonFiniteSteps):
        def on_before_optimizer_step(self, *_: Any, **__: Any) -> None:
            pass

    assert states_equal(
        fit(SkipNonFiniteSteps(), {}, tmp_path)[-1], fit(NoGuard(), {}, tmp_path)[-1]
    )


def test_accumulated_gradients_are_skipped_together(tmp_path: Path) -> None:
    guard = SkipNonFiniteSteps()
    states = fit(guard, {2: torch.nan}, tmp_path, accumulate_grad_batches=2)
    assert guard.skipped == 1
    assert states_equal(states[1], states[3])
    assert not states_equal(states[3], states[5])


def test_too_many_consecutive_steps_stop_training_with_the_cause(tmp_path: Path) -> None:
    guard = SkipNonFiniteSteps(3)
    fit(guard, dict.fromkeys((0, 1, 3, 4, 6), torch.nan), tmp_path)  # never three in a row
    assert (guard.skipped, guard.consecutive) == (5, 1)
    message = (
        r"step 3: the gradients are not finite \(loss nan\); first tensor: model\.0\.weight\. "
        r"Training stops after 3 consecutive"
    )
    with pytest.raises(FloatingPointError, match=message):
        fit(SkipNonFiniteSteps(3), dict.fromkeys((1, 2, 3), torch.nan), tmp_path)


def test_counts_are_saved_and_restored() -> None:
    first, second = SkipNonFiniteSteps(), SkipNonFiniteSteps()
    first.consecutive, first.skipped = 3, 5
    second.load_state_dict(first.state_dict())
    assert (second.consecutive, second.skipped) == (3, 5)
    with pytest.raises(ValueError, match="max_nonfinite_steps must be at least 1, got 0"):
        SkipNonFiniteSteps(0)


@pytest.mark.parametrize(("scale", "counted"), [(65536.0, 0), (1.0, 1), (None, 1)])
def test_steps_that_lower_the_loss_scale_do_not_count(scale: float | None, counted: int) -> None:
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    trainer: Any = SimpleNamespace(
        precision_plugin=SimpleNamespace(scaler=scaler), global_step=0, accumulate_grad_batches=1
    )
    task, guard = Small(), SkipNonFiniteSteps()
    for parameter in task.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        guard.on_before_optimizer_step(trainer, task, task.configure_optimizers())
    assert (guard.consecutive, guard.skipped) == (counted, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("w", torch.nan), ("w", torch.inf), ("running_var", torch.inf), ("table", torch.nan)],
)
def test_nonfinite_weights_are_not_saved(name: str, value: float) -> None:
    state = {"w": torch.ones(3), "running_var": torch.ones(2), "table": torch.zeros(5)}
    check_weights_before_saving(
        {**state, "mask": torch.tensor([-torch.inf]), "steps": torch.tensor(3)}, state
    )
    state[name][1] = value
    with pytest.raises(FloatingPointError, match=rf"{name} is not finite, so nothing is saved"):
        check_weights_before_saving(state, {"w": state["w"]})
