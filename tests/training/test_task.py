"""A task of one's own: what `Task` does for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.data.classification.datasets import LabeledBatch
from visattn.data.scenes.dataset import SingleObjects
from visattn.models.base import ImageClassifier
from visattn.models.resnet import AttentionResNet
from visattn.training.classification.data import ClassificationData
from visattn.training.data_module import InputSpec
from visattn.training.metrics import Evaluation, WeightedMean
from visattn.training.optim import OptimConfig
from visattn.training.task import Task, connect

OPTIM = OptimConfig(warmup_steps=1)


class QuarterTurnEvaluation(Evaluation):
    names = ("loss", "correct")

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.correct = WeightedMean(), WeightedMean()

    def update(self, logits: Tensor, turns: Tensor) -> None:
        self.loss.update(cross_entropy(logits, turns, reduction="sum"), len(turns))
        self.correct.update((logits.argmax(1) == turns).sum(), len(turns))

    def compute(self) -> dict[str, Tensor]:
        return {"loss": self.loss.compute(), "correct": self.correct.compute()}

    def notes(self, split: str) -> dict[str, Any]:
        return {f"{split}_images": float(self.loss.count)}


class QuarterTurnTask(Task):
    """Predict by how many quarters each image was turned."""

    model: ImageClassifier

    def __init__(
        self,
        classifier: Callable[[list[str]], ImageClassifier],
        data_info: dict[str, Any],
        *,
        optim: OptimConfig = OPTIM,
        monitor: str = "val/correct",
    ) -> None:
        super().__init__(classifier(["0", "90", "180", "270"]), optim, monitor)
        self.add_evaluations(QuarterTurnEvaluation)

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec(self.model.img_size, self.model.mean, self.model.std)

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> Tensor:
        loss = cross_entropy(*self.turned(batch))
        self.log("train/loss", loss.detach())
        return loss

    def evaluate(self, batch: LabeledBatch, split: str) -> None:
        self.evaluation(split).update(*self.turned(batch))

    def turned(self, batch: LabeledBatch) -> tuple[Tensor, Tensor]:
        turns = torch.arange(len(batch.images), device=self.device) % 4
        images = torch.stack(
            [torch.rot90(i, int(n), (1, 2)) for i, n in zip(batch.images, turns, strict=True)]
        )
        return self.model(images), turns


def network(names: list[str]) -> AttentionResNet:
    return AttentionResNet(names, depth=8, stem_width=4, img_size=(24, 24))


def data() -> ClassificationData:
    module = ClassificationData(SingleObjects(8, 5, 7, image_size=24), batch_size=4)
    module.test_splits = ("test", "test")
    return module


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        accelerator="cpu", default_root_dir=folder, logger=False, enable_checkpointing=False,
        use_distributed_sampler=False, num_sanity_val_steps=0, **quiet, **options,
    )  # fmt: skip


def test_a_task_of_ones_own_is_trained_and_scored(tmp_path: Path) -> None:
    """Two epochs, so that scores of the first would show in the second without a reset."""
    samples = data()
    task = QuarterTurnTask(network, samples.data_info)
    runner = trainer(tmp_path, max_epochs=2)
    runner.fit(task, samples)
    assert set(task.val_scores) == {"val/loss", "val/correct"} < set(runner.callback_metrics)
    assert task.notes == {}
    fitted = {name: float(runner.callback_metrics[name]) for name in task.val_scores}
    (scores,) = trainer(tmp_path).validate(task, samples, verbose=False)
    assert scores == pytest.approx(fitted)
    assert task.notes == {"val_images": 5.0}
    first, second = trainer(tmp_path).test(task, samples, verbose=False)
    assert {**first, **second}.keys() == {
        f"{split}/{name}" for split in ("test", "novel") for name in ("loss", "correct")
    }
    assert first["test/loss"] == second["novel/loss"]
    assert (task.notes["test_images"], task.notes["novel_images"]) == (7.0, 7.0)


def test_the_optimizer_is_that_of_the_config_with_the_parts_of_the_model(tmp_path: Path) -> None:
    samples = data()
    config = OptimConfig(lambda groups: torch.optim.SGD(groups, lr=0.5), lr_mults={"head": 2.0})
    task = QuarterTurnTask(network, samples.data_info, optim=config)
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(task, samples)
    (optimizer,) = task.trainer.optimizers
    rates = {group["initial_lr"] for group in optimizer.param_groups}
    assert (type(optimizer), rates) == (torch.optim.SGD, {0.5, 1.0})
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0}
    default = QuarterTurnTask(network, samples.data_info)
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(default, data())
    assert type(default.trainer.optimizers[0]) is torch.optim.AdamW


def test_a_task_knows_the_data_of_its_trainer_only(tmp_path: Path) -> None:
    task, first, second = QuarterTurnTask(network, data().data_info), data(), data()
    connect(task, first)
    assert (task.data, first.input_spec) == (first, task.input_spec)
    trainer(tmp_path).validate(task, second, verbose=False)
    assert task.data is second
    assert second.input_spec is not None
    second.setup("validate")
    trainer(tmp_path).validate(task, second.val_dataloader(), verbose=False)
    assert task.data is None


def test_checkpoints_of_other_classes_and_words_are_refused() -> None:
    task = QuarterTurnTask(network, {})
    saved = {"visattn": {"model": {"arguments": {"class_names": ["0", "180", "90", "270"]}}}}
    with pytest.raises(ValueError, match="trained with other classes; .* their order differs"):
        task.on_load_checkpoint(saved)
    saved["visattn"]["model"]["arguments"]["class_names"] = ["0", "90", "180", "turned"]
    with pytest.raises(ValueError, match=r"only one of the two has \['270', 'turned'\]"):
        task.on_load_checkpoint(saved)
    saved["visattn"]["model"]["arguments"] = {"words": ["a", "dog"]}  # the model has none
    task.on_load_checkpoint(saved)


def test_a_task_without_metrics_says_so() -> None:
    class Blind(QuarterTurnTask):
        evaluate = Task.evaluate

    with pytest.raises(NotImplementedError, match="Blind has no metrics"):
        Blind(network, {}).validation_step(None, 0)


def test_gradients_of_fused_optimizers_are_clipped_in_bfloat16(tmp_path: Path) -> None:
    """Lightning refuses it, since a step in float16 would undo its loss scale afterwards."""
    norms: list[float] = []

    class Watched(QuarterTurnTask):
        def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
            gradients = [w.grad for w in self.parameters() if w.grad is not None]
            if gradients and self.trainer.global_step:
                norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def fused(groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=1e-3, momentum=0.9, fused=True)

    samples = data()
    task = Watched(network, samples.data_info, optim=OptimConfig(fused))
    options = {"max_epochs": 2, "limit_val_batches": 0, "gradient_clip_val": 1e-3}
    trainer(tmp_path, precision="bf16-mixed", **options).fit(task, samples)
    assert norms == pytest.approx([1e-3] * 3, rel=1e-2)
