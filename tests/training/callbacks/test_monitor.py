"""Monitored metrics: their names, direction and check; a checkpoint is written in any case."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from caption_data import write_caption_data
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.cli import main
from visattn.data.classification.datasets import InMemoryImages, LabeledImages
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.resnet import AttentionResNet
from visattn.results.kinds import SPECIAL_TOKENS, Split
from visattn.training.callbacks.checkpoints import LastCheckpoint, MonitorFallback, check_monitor
from visattn.training.captioning.data import CaptionDataModule, ScenesDataModule
from visattn.training.captioning.task import CaptioningTask
from visattn.training.classification.data import ClassificationDataModule
from visattn.training.classification.task import ClassificationTask
from visattn.training.data_module import DataModule
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.task import Task, monitor_with_mode

pytestmark = pytest.mark.filterwarnings(
    "ignore:CIDEr-D over:UserWarning", "ignore:.*does not have many workers"
)


class Noise(ClassificationDataModule):
    """Images of noise in three classes."""

    def __init__(self) -> None:
        super().__init__(None, batch_size=5, num_workers=0, seed=3)

    @property
    def data_info(self) -> dict[str, Any]:
        return {"class_names": ["low", "middle", "high"]}

    def open_dataset(self, split: Split) -> LabeledImages:
        random = torch.Generator().manual_seed(len(split))
        images = torch.randint(256, (11, 1, 8, 8), dtype=torch.uint8, generator=random)
        return InMemoryImages(images, torch.arange(11) % 3)


def captioner(words: list[str]) -> Captioner:
    encoder = SmallEncoder((24, 24), channels=8)
    return ShowAttendTell(words, encoder, embed_dim=7, hidden_size=11, attention_dim=5)


def network(classes: list[str]) -> AttentionResNet:
    return AttentionResNet(
        classes, depth=8, stem_width=4, block="se", img_size=(8, 8), mean=(0.5,), std=(0.5,)
    )


def glimpse_model(classes: list[str]) -> RecurrentAttentionModel:
    return RecurrentAttentionModel(
        classes, (8, 8), [0.3], [0.3], glimpse_size=3, num_glimpses=2, hidden_size=11
    )


def trained(task: Task, data: DataModule, folder: Path, *callbacks: Callback) -> Trainer:
    quiet: dict[str, Any] = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
    }
    trainer = Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks),
        limit_train_batches=1,
        limit_val_batches=1,
        max_epochs=1,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **quiet,
    )
    trainer.fit(task, datamodule=data)
    return trainer


def test_tasks_log_the_scores_they_list(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path / "mini")
    photos = CaptionDataModule(
        str(paths.captions), str(paths.photos), train=str(paths.train),
        val=str(paths.validation), min_word_freq=1, batch_size=3,
    )  # fmt: skip
    scenes = ScenesDataModule(image_size=24, train=3, val=3, batch_size=5, num_workers=0)
    for task, data, monitor in (
        (
            CaptioningTask(captioner, scenes.data_info, beam_size=1),
            scenes,
            ("val/caption_accuracy", "max"),
        ),
        (CaptioningTask(captioner, photos.data_info, beam_size=1), photos, ("val/cider-d", "max")),
        (ClassificationTask(network, Noise().data_info), Noise(), ("val/accuracy", "max")),
        (GlimpseTask(glimpse_model, Noise().data_info), Noise(), ("val/error", "min")),
    ):
        logged = trained(task, data, tmp_path).callback_metrics
        assert set(task.val_scores) == {name for name in logged if name.startswith("val/")}
        assert task.monitor == monitor
        check_monitor(task)


def test_the_monitor_must_be_a_listed_score() -> None:
    words = {"words": [*SPECIAL_TOKENS, "dog"]}
    assert CaptioningTask(captioner, words).monitor == (
        "val/loss",
        "min",
    )  # data without annotations
    data_info = {**words, "annotations": ["references"]}
    chosen = CaptioningTask(captioner, data_info, monitor="val/loss")
    check_monitor(chosen)
    for score in ("val/caption_accuracy", "val/cider", "loss"):
        with pytest.raises(ValueError, match=f"got '{score}'; .* logs val/loss, val/bleu-1, .*-d$"):
            check_monitor(CaptioningTask(captioner, data_info, monitor=score))
    with pytest.raises(ValueError, match="logs val/loss, val/error, val/error_random"):
        check_monitor(GlimpseTask(glimpse_model, Noise().data_info, monitor="val/accuracy"))
    directions = {
        "calibration_error": "min",
        "error_random": "min",
        "worst_class_accuracy": "max",
        "caption_accuracy": "max",
    }
    assert {name: monitor_with_mode(f"val/{name}")[1] for name in directions} == directions


def test_without_the_monitored_score_only_the_best_checkpoint_is_missing(tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path, "best", monitor="val/nothing", save_on_train_epoch_end=False)
    callbacks = [MonitorFallback(best), best, LastCheckpoint(tmp_path)]
    task = ClassificationTask(network, Noise().data_info)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(task, Noise(), tmp_path, *callbacks)
    messages = [str(warning.message) for warning in caught]
    [message] = [text for text in messages if "did not log" in text]
    assert "validation did not log 'val/nothing', so there will be no best.ckpt" in message
    assert "It logged train/loss, val/accuracy" in message
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["last.ckpt"]


def test_an_unknown_score_is_refused_before_anything_is_written(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "--config", str(tiny), "--run", str(tmp_path / "run")]
    assert main([*words, "--model.monitor", "val/cider-d"]) == 1
    said = capsys.readouterr().err
    assert "visattn: monitor must name a validation metric, got 'val/cider-d'" in said
    assert "CaptioningTask logs val/loss, val/caption_accuracy, val/parsed" in said
    assert not (tmp_path / "run").exists()
