"""The task and the data of the guides, as printed: trained and scored; what `Task` does."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from task_runs import as_yaml, of, small_trainer
from torch import nn

from visattn.cli import main
from visattn.data.scenes.dataset import SingleObjects
from visattn.models.saving import load
from visattn.training.classification.data import ClassificationData
from visattn.training.optim import OptimConfig
from visattn.training.task import Task, connect, monitor_with_mode


def printed(page: str, after: str) -> str:
    """Return the first block of Python of a page after some words."""
    text = (Path(__file__).parents[2] / page).read_text().partition(after)[2]
    return text.split("```python\n")[1].split("```")[0]


CODE = printed("docs/guides/training.md", "class_path: turns.TurnTask")
BIRDS = printed("configs/README.md", "**Your own data**")
CONFIG = as_yaml(
    of("turns.TurnTask", width=4), of("ClassificationData", source="my_data.birds", batch_size=4)
)


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the guide, which is trusted."""
    (tmp_path / "turns.py").write_text(CODE)
    (tmp_path / "my_data.py").write_text(BIRDS)
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "turns,my_data")
    monkeypatch.syspath_prepend(tmp_path)
    import turns  # pyright: ignore[reportMissingImports]

    yield turns
    for name in ("turns", "my_data"):
        sys.modules.pop(name, None)


def data(**options: Any) -> ClassificationData:
    return ClassificationData(SingleObjects(8, 5, 7, image_size=32), batch_size=4, **options)


@pytest.mark.usefixtures("turns")
def test_the_task_of_the_guide_is_trained_validated_and_tested() -> None:
    """Two epochs, so that scores of the first would show in the second without a reset."""
    assert (len(CODE.splitlines()) <= 50, len(BIRDS.splitlines()) <= 10) == (True, True)
    for split, count in (("train", 4), ("val", 3)):
        paths = [Path(f"{split}{number}.png") for number in range(count)]
        for number, path in enumerate(paths):
            Image.new("RGB", (40, 32), (60 * number, 9, 9)).save(path)
        Path(f"{split}.csv").write_text("".join(f"{path},{path.stem[-1]}\n" for path in paths))
    Path("turns.yaml").write_text(CONFIG)
    assert main(["fit", "--config", "turns.yaml", "--run", "run"]) == 0
    last = ["--run", "run", "--ckpt_path", "run/checkpoints/last.ckpt"]
    for command in ("validate", "test"):
        assert main([command, *last]) == 0
    with Path("run/csv-1/metrics.csv").open() as file:
        logged = [row for row in csv.DictReader(file) if row["val/loss"]]
    scores = json.loads(Path("run/validate.json").read_text())
    assert scores == pytest.approx({name: float(logged[1][name]) for name in scores})
    assert json.loads(Path("run/test.json").read_text()).keys() == {"test/loss", "test/accuracy"}
    assert type(load("run")).__name__ == "AttentionResNet"


def test_the_second_test_set_has_scores_and_notes_of_its_own(turns: Any, tmp_path: Path) -> None:
    samples = data()
    samples.test_splits = ("test", "test")
    task: Task = turns.TurnTask(samples.data_info)
    turns.TurnScores.notes = lambda _, split: {f"{split}_seen": 1.0}
    first, second = small_trainer(tmp_path).test(task, samples, verbose=False)
    assert first["test/loss"] == second["novel/loss"]
    assert task.notes == {"test_seen": 1.0, "novel_seen": 1.0}


def test_the_optimizer_is_that_of_the_config(turns: Any, tmp_path: Path) -> None:
    """In bfloat16, fused and clipped, which Lightning refuses for the loss scale of float16."""
    norms: list[float] = []

    class Watched(turns.TurnTask):
        def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
            gradients = [w.grad for w in self.parameters() if w.grad is not None]
            if gradients and self.trainer.global_step:
                norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def fused(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=1e-3, momentum=0.9, fused=True)

    task = Watched(data().data_info, width=4)
    task.optim = OptimConfig(fused, lr_mults={"head": 2.0})
    options = {"limit_val_batches": 0, "gradient_clip_val": 1e-3, "precision": "bf16-mixed"}
    small_trainer(tmp_path, **options).fit(task, data())
    assert norms == pytest.approx([1e-3], rel=1e-2)
    groups = task.trainer.optimizers[0].param_groups
    assert {group["initial_lr"] for group in groups} == {1e-3, 2e-3}
    default = turns.TurnTask(data().data_info, width=4)
    small_trainer(tmp_path, max_steps=1, limit_val_batches=0).fit(default, data())
    assert type(default.trainer.optimizers[0]) is torch.optim.AdamW


def test_a_task_knows_the_data_of_its_trainer_only(turns: Any, tmp_path: Path) -> None:
    task, first, second = turns.TurnTask({}, width=4), data(), data()
    connect(task, first)
    assert (task.data, first.input_spec) == (first, task.input_spec)
    runner = small_trainer(tmp_path, limit_val_batches=1)
    runner.validate(task, second, verbose=False)
    assert task.data is second
    assert second.input_spec is not None
    runner = small_trainer(tmp_path, limit_val_batches=1)
    runner.validate(task, second.val_dataloader(), verbose=False)
    assert task.data is None


def test_checkpoints_of_other_classes_are_refused(turns: Any) -> None:
    task = turns.TurnTask({}, width=4)
    for names, message in (
        (["0", "180", "90", "270"], "trained with other classes; .* their order differs"),
        (["0", "90", "180", "turned"], r"only one of the two has \['270', 'turned'\]"),
    ):
        saved: Any = {"visattn": {"model": {"arguments": {"class_names": names}}}}
        with pytest.raises(ValueError, match=message):
            task.on_load_checkpoint(saved)
    saved["visattn"]["model"]["arguments"] = {"words": ["a", "dog"]}  # the model has none
    task.on_load_checkpoint(saved)


def test_a_copy_of_a_task_shares_its_optimizer_and_data(turns: Any) -> None:
    """What the command line makes of an optimizer leads to the processes that it started."""
    from copy import deepcopy
    from threading import Lock

    task = turns.TurnTask({}, width=4)
    task.trainer = SimpleNamespace(lock=Lock())
    task.optim = OptimConfig(lambda _: task.trainer.lock)
    copied = deepcopy(task)
    assert copied.optim is task.optim
    assert copied._trainer is None
    weights = (next(each.model.parameters()) for each in (copied, task))
    assert next(weights) is not next(weights)


def test_the_direction_of_a_metric_follows_from_its_name() -> None:
    names = {"calibration_error": "min", "error_random": "min", "loss": "min", "cider-d": "max"}
    assert {name: monitor_with_mode(f"val/{name}")[1] for name in names} == names


def test_a_task_without_metrics_says_so() -> None:
    class Blind(Task):
        def training_step(self, batch: Any, batch_idx: int) -> Any: ...

    with pytest.raises(NotImplementedError, match="Blind has no metrics"):
        Blind(nn.Linear(1, 1)).validation_step(None, 0)
