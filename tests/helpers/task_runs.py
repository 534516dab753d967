"""Small runs of every task on generated data, and callbacks that watch and interrupt them.

`write_runs(folder, FAULTS)` for runs that are interrupted: with dropout, mixed images and an
average of the weights. `write_runs(folder, FIVES, random=False)` for runs that are compared over
processes, whose random numbers of layers differ between these.
"""

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import yaml
from caption_data import write_caption_data
from classification_data import write_digits, write_photo_folders
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from visattn.io import atomic as whole_files

QUIET = {
    "accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False,
    "enable_model_summary": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1,
}  # fmt: skip
LOSSES: list[float] = []  # of `LossLog`
RANDOM = {"mixup", "cutmix", "drop_path_rate", "dropout", "feature_dropout"}


def small_trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """Return a trainer of one epoch without logs and checkpoints."""
    quiet = {**QUIET, "max_epochs": 1, "logger": False, "enable_checkpointing": False}
    return Trainer(
        default_root_dir=folder, callbacks=list(callbacks), use_distributed_sampler=False,
        **{**quiet, **options},
    )  # fmt: skip


def of(name: str, /, **arguments: Any) -> dict[str, Any]:
    """Return the config of a class."""
    return {"class_path": name, "init_args": arguments}


OPTIM = {"optimizer": of("torch.optim.AdamW", lr=2e-3, weight_decay=0.1), "warmup_steps": 0}
GRAY, RGB = {"mean": [0.1], "std": [0.3]}, {"mean": [0.5] * 3, "std": [0.3] * 3}


def classifier(classifier: dict[str, Any], **options: Any) -> dict[str, Any]:
    mixed = {"mixup": 0.4, "cutmix": 1.0}
    return of("ClassificationTask", classifier=classifier, **mixed, optim=OPTIM, **options)


def vit(**colors: list[float]) -> dict[str, Any]:
    sizes = {"img_size": [28, 28], "patch_size": 7, "embed_dim": 8, "depth": 2, "num_heads": 2}
    return of("VisionTransformer", **sizes, drop_path_rate=0.3, **colors)


def trained(*size: int) -> dict[str, Any]:
    return of("SmallEncoder", img_size=list(size), channels=8)


def frozen(side: int) -> dict[str, Any]:
    return of("TimmEncoder", name="test_resnet", img_size=[side, side])


SOFT = {"embed_dim": 7, "hidden_size": 11, "attention_dim": 5}


def soft(encoder: dict[str, Any], **options: Any) -> dict[str, Any]:
    return of("ShowAttendTell", encoder=encoder, **SOFT, dropout=0.3, **options)


def data(kind: str, source: dict[str, Any], batch_size: int = 6, **options: Any) -> dict[str, Any]:
    return of(f"{kind}Data", source=source, batch_size=batch_size, num_workers=0, **options)


SIZES = {"image_size": 24, "train": 13, "val": 3, "test": 11}
FLIP = [of("RandomHorizontalFlip")]
TURN = [of("RandomCrop", size=28, padding=3), of("RandomRotation", degrees=[-20, 20])]
TRANSFORMER = of(
    "TransformerCaptioner", encoder=trained(24, 24), embed_dim=14, num_heads=7, num_layers=1,
    dropout=0.3, feature_dropout=0.2,
)  # fmt: skip
GUIDED = {"doubly_stochastic_weight": 1.0, "attention_loss_weight": 0.5, "label_smoothing": 0.1}
PHOTOS = data(
    "Caption",
    of("CaptionFile", captions="captions.token.txt", photos="photos", train="train.txt",
       val="validation.txt"),
    3, phrases="phrase_boxes.json.gz", hflip=True, min_word_freq=1,
)  # fmt: skip
SCENES = data("Caption", of("SceneCaptions", image_size=24, train=7, val=11, test=11), 7)
GLIMPSES = {"hidden_size": 11, "what_dim": 7, "where_dim": 5}
READER = of(
    "DRAM", img_size=[48, 80], **GRAY, **{**GLIMPSES, "where_dim": 3}, end_class="end",
    num_glimpses_per_object=2, glimpse_size=5, context_size=6,
)  # fmt: skip
CANVASES = data(
    "Sequence",
    of("DigitCanvases", root=".", val=7, spec={"canvas": {"size": [48, 80]}, "max_digits": 2}),
    train_transforms=[of("RandomInvert")],
)
ATTEND = {"optim": OPTIM, "beam_size": 2}
TASKS = {
    "classes": (
        classifier(vit(**GRAY)),
        data("Classification", of("TorchvisionImages", dataset="MNIST", root=".", val=11),
             transforms=[of("RandomAffine", degrees=[-9, 9], scale=[0.9, 1.1])],
             train_transforms=TURN),
    ),
    "photos": (
        classifier(of("AttentionResNet", depth=8, stem_width=4, img_size=[24, 24], block="cbam")),
        data("Classification", of("ClassFolders", root="folders"), 4,
             train_transforms=[of("RandomResizedCrop", size=[24, 24]), *FLIP]),
    ),
    "shapes": (
        classifier(vit(**RGB)),
        data("Classification", of("SingleObjects", image_size=28, train=25, val=11, test=11),
             train_transforms=FLIP),
    ),
    "glimpses": (
        of("GlimpseTask",
           model=of("RecurrentAttentionModel", img_size=[33, 33], **GRAY, **GLIMPSES,
                    glimpse_size=7, num_glimpses=3, policy_std=0.3),
           num_rollouts=3, baseline="informed", reward="gain", normalize_advantages=True,
           backprop_policy_to_core=True, final_std=0.1, num_eval_starts=2, num_eval_samples=2),
        data("Classification",
             of("ClutteredDigits", root=".", canvas={"size": [33, 33], "num_distractors": 2},
                val=11),
             train_transforms=[of("RandomInvert")]),
    ),
    "scenes": (of("CaptioningTask", captioner=TRANSFORMER, **ATTEND), SCENES),
    "captions": (
        of("CaptioningTask", captioner=soft(frozen(64)), monitor="val/cider-d", **GUIDED,
           **ATTEND),
        PHOTOS,
    ),
    "critical": (
        of("SCSTTask", captioner=soft(frozen(64)), num_samples=3, monitor="val/cider-d", **ATTEND),
        PHOTOS,
    ),
    "hard": (
        of("HardAttentionTask", captioner=soft(frozen(64), attention="hard"), num_rollouts=3,
           entropy_until=0.9, **GUIDED, **ATTEND),
        PHOTOS,
    ),
    "questions": (
        of("QuestionTask",
           vqa_model=of("CrossAttentionVQA", encoder=frozen(80), dim=8, num_heads=2,
                        grid_layers=0, reading_layers=2),
           hop_loss_weight=0.5, optim=OPTIM),
        data("Question", of("SortOfClevrImages", train=13, val=11, test=11, questions=3), 3),
    ),
    "masks": (
        of("SegmentationTask",
           segmenter=of("UNet", encoder=trained(24, 24), decoder_channels=[7, 5]),
           dice_weight=0.0, num_panels=0),
        data("Segmentation", of("SceneObjects", **SIZES), 3),
    ),
    "boxes": (
        of("DetectionTask",
           detector=of("DETR", encoder=trained(24, 24), dim=8, num_heads=2, num_queries=7,
                       num_encoder_layers=1, num_decoder_layers=1)),
        data("Detection", of("SceneObjects", **SIZES), 3, train_transforms=FLIP),
    ),
    "sequences": (
        of("SequenceRecognitionTask",
           captioner=of("SequenceRecognizer", encoder=trained(48, 80)), beam_size=1),
        CANVASES,
    ),
    "readers": (
        of("GlimpseTask", model=READER, num_rollouts=2, supervised_location_epochs=1,
           reward="gain", backprop_policy_to_core=True, final_std=0.05),
        CANVASES,
    ),
}  # fmt: skip


def as_yaml(task: dict[str, Any], samples: dict[str, Any], **trainer: Any) -> str:
    """Return the config of a quiet training of two epochs."""
    config = {"trainer": {**QUIET, **trainer}, "model": task, "data": samples}
    return yaml.safe_dump(json.loads(json.dumps(config)))  # without references to equal parts


def tiny_run(*callbacks: dict[str, Any], test: int = 11) -> str:
    """Return the config of a captioner of scenes that is trained for two steps, as YAML."""
    task = of("CaptioningTask", captioner=of("ShowAttendTell", encoder=trained(24, 24), **SOFT))
    source = of("SceneCaptions", image_size=24, train=3, val=3, test=test)
    return as_yaml(task, data("Caption", source, 7), limit_train_batches=1, callbacks=[*callbacks])


FAULTS = {"callbacks": [of("EMA", decay=0.7), of("task_runs.FaultInjector")]}
FIVES = {
    "callbacks": [of("task_runs.SmallEvaluation")], "logger": False, "gradient_clip_val": 0.1,
}  # fmt: skip


def write_runs(folder: Path, trainer: dict[str, Any], *, random: bool = True) -> None:
    """Write a config for every task, and the data that they read, into a folder."""
    for name, (task, samples) in TASKS.items():
        model = task if random else certain(task)
        (folder / f"{name}.yaml").write_text(as_yaml(model, samples, **trainer))
    write_digits(folder, train=41)
    write_photo_folders(folder / "folders", train=6, val=2)
    _write_captions(folder)


def certain(value: Any) -> Any:
    """Return a config without random numbers of layers."""
    if isinstance(value, dict):
        return {key: 0.0 if key in RANDOM else certain(each) for key, each in value.items()}
    return [certain(each) for each in value] if isinstance(value, list) else value


def _write_captions(folder: Path) -> None:
    """Write 12 photos for training and 11 for validation; they have 1 to 5 captions each.

    Phrases are known of every third training photo, and of the first two for validation.
    """
    paths = write_caption_data(folder, photos=23, sides=False)
    lines = paths.captions.read_text().splitlines(keepends=True)
    names = [line.partition("#")[0] for line in lines[::5]]
    few = (line for n in range(23) for line in lines[5 * n : 5 * n + 1 + n % 5])
    paths.captions.write_text("".join(few))
    paths.train.write_text("\n".join(names[:12]))
    paths.validation.write_text("\n".join(names[12:]))
    phrases = json.loads(gzip.decompress(paths.phrases.read_bytes()))
    kept = {*names[:12:3], *names[12:14]}
    known = {name: value for name, value in phrases.items() if name in kept}
    paths.phrases.write_bytes(gzip.compress(json.dumps(known).encode(), mtime=0))


class FaultInjector(Callback):
    """Keep a state of each kind, and cause the fault of the environment variable BREAK.

    BREAK is EVENT:BATCH or EVENT:BATCH:RANK. The events: `kill` in the middle of the batch, `end`
    at its end, `writing` in the middle of the next checkpoint; `term` and `int` for the signals,
    `validation` and `term_validation` for those in the next validation; `keep` for the states after
    each batch, validation and epoch, in the folder `kept` of the run.
    """

    def __init__(self) -> None:
        event, _, place = os.environ.get("BREAK", "none:0").partition(":")
        batch, _, rank = place.partition(":")
        self.event, self.batch, self.rank = event, int(batch), int(rank or 0)

    def _now(self, trainer: Trainer, event: str) -> bool:
        due = trainer.fit_loop.total_batch_idx >= self.batch
        return self.event == event and due and trainer.global_rank == self.rank

    def _kill(self, trainer: Trainer, event: str, number: int) -> None:
        if self._now(trainer, event) and not trainer.sanity_checking:
            self.event = "done"
            os.kill(os.getpid(), number)

    def _keep(self, trainer: Trainer, kind: str) -> None:
        if self.event == "keep":
            number = trainer.fit_loop.total_batch_idx
            file = Path(trainer.default_root_dir, "kept", f"{kind}-{number}.ckpt")
            trainer.save_checkpoint(file)

    def on_train_batch_start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "term", signal.SIGTERM)
        self._kill(trainer, "int", signal.SIGINT)

    def on_before_backward(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "kill", signal.SIGKILL)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "end", signal.SIGKILL)
        if self._now(trainer, "writing"):
            whole_files.flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        if not trainer.fit_loop._should_accumulate():
            self._keep(trainer, "batch")

    def on_validation_batch_start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "validation", signal.SIGKILL)
        self._kill(trainer, "term_validation", signal.SIGTERM)

    def on_validation_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._keep(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._keep(trainer, "epoch")


class SmallEvaluation(Callback):
    """Evaluate five samples at once: two processes need different numbers of batches for 11."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.eval_batch_size = 5


class LossLog(Callback):
    """Append the loss of each step to `LOSSES`, and end the run after the last of them."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        LOSSES.append(float(outputs["loss"]))
        trainer.should_stop = len(LOSSES) >= self.last
