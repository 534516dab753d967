"""Steps without a finite gradient: nothing of them stays, and many are told with their cause."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from visattn.models.serialization.finite_weights import check_weights
from visattn.training.base import Task
from visattn.training.callbacks.nonfinite_guard import SkipNonFiniteSteps, _still_scaling


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


class Small(Task):
    """Learns nothing in particular from batches of numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(Normed())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> SGD:
        return SGD(self.parameters(), lr=0.1, momentum=0.9)


class Seen(Callback):
    """The weights and statistics after each batch."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        self.states.append({k: v.clone() for k, v in pl_module.model.state_dict().items()})


def fit(
    guard: SkipNonFiniteSteps, bad: dict[int, float], folder: Path, **options: Any
) -> list[Any]:
    """Train on seven batches, of which some hold a bad number."""
    batches = torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(1))
    for number, value in bad.items():
        batches[number, 2, 1] = value
    seen = Seen()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[guard, seen],
        **options,
    )
    loader: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    trainer.fit(Small(), loader)
    return seen.states


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_nothing_of_a_bad_step_stays(tmp_path: Path, value: float) -> None:
    """Not in the weights, and not in the running statistics, which 1e30 makes infinite."""
    guard = SkipNonFiniteSteps()
    states = fit(guard, {3: value}, tmp_path)
    assert guard.left_out == 1
    assert guard.row == 0
    assert same(states[2], states[3])
    assert not same(states[3], states[4])
    assert all(bool(one.isfinite().all()) for one in states[-1].values())


def test_runs_without_bad_steps_are_what_they_were(tmp_path: Path) -> None:
    class Blind(SkipNonFiniteSteps):
        def on_before_optimizer_step(self, *_: Any, **__: Any) -> None:
            pass

    assert same(fit(SkipNonFiniteSteps(), {}, tmp_path)[-1], fit(Blind(), {}, tmp_path)[-1])


def test_gathered_gradients_are_left_out_together(tmp_path: Path) -> None:
    guard = SkipNonFiniteSteps()
    states = fit(guard, {2: torch.nan}, tmp_path, accumulate_grad_batches=2)
    assert guard.left_out == 1
    assert same(states[1], states[3])
    assert not same(states[3], states[5])


def test_too_many_in_a_row_end_the_run_with_their_cause(tmp_path: Path) -> None:
    guard = SkipNonFiniteSteps(3)
    fit(guard, dict.fromkeys((0, 1, 3, 4, 6), torch.nan), tmp_path)  # never three in a row
    assert (guard.left_out, guard.row) == (5, 1)
    said = (
        r"step 3: the gradients are not finite \(loss nan\); the first weights concerned are "
        r"model\.0\.weight, the first layer that gives no numbers is model\.0 \(Linear\)\. That is "
        r"3 steps in a row"
    )
    with pytest.raises(FloatingPointError, match=said):
        fit(SkipNonFiniteSteps(3), dict.fromkeys((1, 2, 3), torch.nan), tmp_path)


def test_what_is_counted_is_kept() -> None:
    first, second = SkipNonFiniteSteps(), SkipNonFiniteSteps()
    first.row, first.left_out = 3, 5
    second.load_state_dict(first.state_dict())
    assert (second.row, second.left_out) == (3, 5)
    with pytest.raises(ValueError, match="after at least 1 bad step, got 0"):
        SkipNonFiniteSteps(0)


@pytest.mark.parametrize(("scale", "still"), [(65536.0, True), (1.0, False), (None, False)])
def test_steps_by_which_a_scale_is_found_do_not_count(scale: float | None, still: bool) -> None:
    scaler = None if scale is None else SimpleNamespace(get_scale=lambda: scale)
    trainer: Any = SimpleNamespace(precision_plugin=SimpleNamespace(scaler=scaler))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        assert _still_scaling(trainer) == still


@pytest.mark.parametrize(
    ("name", "value"),
    [("w", torch.nan), ("w", torch.inf), ("running_var", torch.inf), ("table", torch.nan)],
)
def test_weights_that_are_no_numbers_are_not_saved(name: str, value: float) -> None:
    state = {"w": torch.ones(3), "running_var": torch.ones(2), "table": torch.zeros(5)}
    check_weights({**state, "mask": torch.tensor([-torch.inf]), "steps": torch.tensor(3)}, state)
    state[name][1] = value
    with pytest.raises(FloatingPointError, match=rf"{name} is not finite, so nothing is saved"):
        check_weights(state, {"w": state["w"]})
