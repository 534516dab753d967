"""Training of recurrent attention models: optimizer, losses, logs, evaluation and resuming."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from visattn.data.classification.datasets import LabeledBatch
from visattn.data.source import Source
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.results.kinds import Split
from visattn.training.classification.data import ClassificationData
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.optim import OptimConfig

SIZES = {"train": 20, "validation": 7, "test": 11}


class Recorded(list[Any]):
    """A list that records what is read."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.read: list[int] = []

    def __getitem__(self, number: Any) -> Any:
        self.read.append(number)
        return super().__getitem__(number)


class Rows(Source):
    """Noise images in three classes; the brightest row is the class."""

    class_names = ("low", "middle", "high")

    def __init__(self) -> None:
        self.opened: list[Split] = []

    def __call__(self, split: Split) -> Recorded:
        self.opened.append(split)
        count, random = SIZES[split], torch.Generator().manual_seed(len(split))
        images = torch.randint(128, (count, 1, 9, 7), dtype=torch.uint8, generator=random)
        for number, image in enumerate(images):
            image[0, 3 * (number % 3)] = 255
        return Recorded([(image, number % 3) for number, image in enumerate(images)])


class BrightRows(ClassificationData):
    """The images of `Rows`."""

    eval_batch_size = 5
    source: Rows

    def __init__(self, batch_size: int = 5, train_transforms: Any = None) -> None:
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": 0, "seed": 3}
        super().__init__(Rows(), train_transforms=train_transforms, **options)

    def images(self, split: Split) -> LabeledBatch:
        return self.collate(split)([*self.dataset(split)])


def build_task(model: dict[str, Any] | None = None, **options: Any) -> GlimpseTask:
    def build(class_names: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(
            class_names, (9, 7), [0.3], [0.3],
            **{
                "glimpse_size": 3,
                "num_glimpses": 4,
                "hidden_size": 11,
                "what_dim": 7,
                "where_dim": 5,
                **(model or {}),
            },
        )  # fmt: skip

    torch.manual_seed(0)
    return GlimpseTask(build, BrightRows().data_info, **options)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "logger": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "enable_checkpointing": any(
            isinstance(callback, ModelCheckpoint) for callback in callbacks
        ),
    }
    return Trainer(
        default_root_dir=folder, accelerator="cpu", callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        **{**settings, **options},
    )  # fmt: skip


class PolicyRecorder(Callback):
    """Records the standard deviation and the weights of the policy after each step."""

    def __init__(self) -> None:
        self.stds: list[float] = []
        self.weights: list[Tensor] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        policy = pl_module.model.policy
        self.stds.append(float(policy.std.detach()))
        self.weights.append(policy.mean.weight.detach().clone())


def optimizer_config(task: GlimpseTask, monkeypatch: pytest.MonkeyPatch, steps: int = 100) -> Any:
    class StepCount:
        estimated_stepping_batches, callbacks = steps, ()

    monkeypatch.setattr(GlimpseTask, "trainer", StepCount())
    return task.configure_optimizers()


def test_each_part_has_its_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build_task(optim=OptimConfig(lr_mults={"policy": 0.25, "baseline": 3.0}))
    optimizer = optimizer_config(task, monkeypatch)["optimizer"]
    rates = {
        id(parameter): group["initial_lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in task.named_parameters():
        if not parameter.requires_grad:
            assert id(parameter) not in rates
            continue
        expected = 3e-3 if "value_baseline" in name else 2.5e-4 if "policy" in name else 1e-3
        assert rates.pop(id(parameter)) == pytest.approx(expected), name
    assert not rates


def test_paper_network_has_209_677_trained_parameters() -> None:
    task = GlimpseTask(
        lambda class_names: RecurrentAttentionModel(class_names, (28, 28), [0.1], [0.3]),
        {"class_names": list("0123456789")},
    )
    learned = sum(weight.numel() for weight in task.parameters() if weight.requires_grad)
    assert learned == 209_677
    assert sum(weight.numel() for weight in task.parameters()) == learned + 3  # start and std
    baseline = task.value_baseline
    assert baseline is not None
    assert sum(weight.numel() for weight in baseline.parameters()) == 257
    expected = baseline(torch.randn(2, 3, 5, 256), torch.zeros(2, 3, 5))
    assert expected.unique().tolist() == pytest.approx([0.1])


@pytest.mark.parametrize("baseline", ["learned", "informed"])
def test_one_step_changes_every_trained_parameter(baseline: Any, tmp_path: Path) -> None:
    task = build_task(baseline=baseline, num_rollouts=2, reward="gain")
    before = {
        name: weight.detach().clone()
        for name, weight in task.named_parameters()
        if weight.requires_grad
    }
    trainer(tmp_path, max_steps=1, limit_val_batches=0).fit(task, BrightRows())
    weights = dict(task.named_parameters())
    unchanged = {name for name in before if torch.equal(weights[name], before[name])}
    # The output weights start at 0, so the hidden layer has no gradient yet.
    assert unchanged <= {"value_baseline.hidden.weight", "value_baseline.hidden.bias"}


def test_policy_std_decays_linearly_in_its_logarithm(tmp_path: Path) -> None:
    task, recorder = build_task({"policy_std": 0.4}, final_std=0.1), PolicyRecorder()
    trainer(tmp_path, recorder, max_epochs=2, limit_val_batches=0).fit(task, BrightRows())
    expected = [0.4 * (0.1 / 0.4) ** (step / 8) for step in range(8)]
    assert recorder.stds == pytest.approx(expected)


DIAGNOSTICS = {
    "reward", "explained_variance", "std", "mean_std", "baseline_loss",
}  # fmt: skip


def test_diagnostics_are_logged_at_their_step(tmp_path: Path) -> None:
    task = build_task({"policy_std": 0.4}, num_rollouts=3, final_std=0.1)
    logger = CSVLogger(tmp_path)
    run = trainer(tmp_path, logger=logger, max_epochs=2, log_every_n_steps=2)
    run.fit(task, BrightRows())
    assert logger.log_dir is not None
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text().splitlines()))
    names = {f"policy/{name}" for name in DIAGNOSTICS}
    assert names | {"train/loss"} <= set(rows[0])
    rows_with_policy = [row for row in rows if row["policy/std"]]
    assert [int(row["step"]) for row in rows_with_policy] == [1, 3, 5, 7]
    for row in rows_with_policy:
        expected = 0.4 * (0.1 / 0.4) ** (int(row["step"]) / 8)
        assert float(row["policy/std"]) == pytest.approx(expected, rel=1e-5)
        assert all(math.isfinite(float(row[name])) for name in names)
    validated = [row for row in rows if row["val/error"]]
    assert len(validated) == 2
    for name in ("val/error_random", "val/error_raster", "val/loss"):
        assert float(validated[0][name]) >= 0


def test_batch_size_one(tmp_path: Path) -> None:
    data = BrightRows(batch_size=1)
    data.eval_batch_size = 1
    run = trainer(tmp_path, max_steps=2, val_check_interval=2)
    run.fit(build_task(normalize_advantages=True), data)
    assert 0 <= float(run.callback_metrics["val/error"]) <= 1


def test_test_is_deterministic_and_reads_each_image_once(tmp_path: Path) -> None:
    task, results, notes = build_task(num_eval_starts=2, num_eval_samples=3), [], []
    for seed in (1, 2):
        seed_everything(seed)
        data = BrightRows()
        (scores,) = trainer(tmp_path).test(task, data, verbose=False)
        assert data.source.opened == ["test"]
        images: Any = data.samples("test")
        assert sorted(images.read) == list(range(11))
        results.append(scores)
        notes.append(task.notes)
    assert results[0] == results[1]
    assert set(results[0]) == {
        "test/error", "test/error_random", "test/error_raster", "test/error_sampled",
        "test/error_averaged_3x4_glimpses", "test/loss",
    }  # fmt: skip
    assert notes[0] == notes[1]


def test_training_does_not_open_the_test_split(tmp_path: Path) -> None:
    data = BrightRows()
    trainer(tmp_path).fit(build_task(), data)
    assert sorted(data.source.opened) == ["train", "validation"]


def test_errors_per_glimpse_are_reported(tmp_path: Path) -> None:
    task = build_task(num_eval_samples=2)
    (scores,) = trainer(tmp_path).test(task, BrightRows(), verbose=False)
    per_glimpse = task.notes["test_error_per_glimpse"]
    assert set(per_glimpse) == {"greedy", "random", "raster", "sampled", "averaged"}
    assert all(len(errors) == 4 for errors in per_glimpse.values())
    assert per_glimpse["greedy"][-1] == pytest.approx(scores["test/error"])
    assert per_glimpse["averaged"][-1] == pytest.approx(scores["test/error_averaged_2x4_glimpses"])
    again = build_task(num_eval_samples=2)
    trainer(tmp_path).validate(again, BrightRows(), verbose=False)
    assert set(again.notes["val_error_per_glimpse"]) == {"greedy", "random", "raster"}


def test_error_is_that_of_the_greedy_policy(tmp_path: Path) -> None:
    task = build_task(num_eval_samples=1).eval()
    task.model.random_start = False  # type: ignore[misc] (as that of DRAM)
    data = BrightRows()
    (scores,) = trainer(tmp_path).test(task, data, verbose=False)
    batch = data.images("test")
    logits = task.model.eval()(batch.images)
    wrong = (logits.argmax(1) != batch.labels).float().mean()
    assert scores["test/error"] == pytest.approx(wrong.item())
    loss = nn.functional.cross_entropy(logits, batch.labels)
    assert scores["test/loss"] == pytest.approx(loss.item(), rel=1e-5)


class Interrupt(Callback):
    """Interrupts the second epoch: nothing is written after the checkpoint."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


def test_the_weights_of_another_run_leave_the_options_of_the_task(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "last", enable_version_counter=False)
    first = build_task({"policy_std": 0.5})
    trainer(tmp_path, saver).fit(first, BrightRows())
    task = build_task({"policy_std": 0.25}, baseline="learned")
    own = {name: value.clone() for name, value in task.value_baseline.state_dict().items()}
    task.initialize(tmp_path / "last.ckpt")
    weights = task.model.state_dict()
    assert float(weights.pop("policy.log_std").exp()) == 0.25
    for name, value in weights.items():
        assert torch.equal(value, first.model.state_dict()[name]), name
    for name, value in task.value_baseline.state_dict().items():
        assert torch.equal(value, own[name]), name
