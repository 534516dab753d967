"""Operations and host syncs of a training step, with guard and EMA, counted on the CPU."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset

from benchmarks.op_counts import OpCounter
from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.training.callbacks.ema import EMA
from visattn.training.callbacks.guards import SkipNonFiniteSteps
from visattn.training.captioning.task import CaptioningTask
from visattn.training.classification.task import ClassificationTask
from visattn.training.cli.lightning_cli import silence_lightning
from visattn.training.glimpses.task import GlimpseTask
from visattn.training.optim import OptimConfig
from visattn.training.task import Task

STEPS = 4
_FUSED = OptimConfig(partial(AdamW, lr=1e-3, fused=True))


class StepCount(NamedTuple):
    """Counts of one training step, from the start of a batch to the end of its callbacks.

    Args:
        title: Name of the model.
        ops: Operations, views excepted.
        ema_ops: Those of the moving average.
        syncs: Reads of a device value by the host.
        ema_syncs: Those of the moving average.
        sync_names: Names of the syncs with their numbers.
    """

    title: str
    ops: int
    ema_ops: int
    syncs: int
    ema_syncs: int
    sync_names: dict[str, int]

    def __str__(self) -> str:
        names = ", ".join(f"{count} {name}" for name, count in self.sync_names.items())
        return (
            f"{self.title}: {self.ops} operations a step ({self.ema_ops} of the EMA), "
            f"{self.syncs} host syncs ({self.ema_syncs} of the EMA){names and ': '}{names}"
        )


class Repeated(Dataset[Any]):
    """A batch for each step.

    Args:
        batch: The batch.
        steps: How many.
    """

    def __init__(self, batch: Any, steps: int = STEPS) -> None:
        self.batch = batch
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, _: int) -> Any:
        return self.batch


class _StepRecorder(Callback):
    """Stores the counts of the last step; `EMA` comes after it in the list of callbacks."""

    def __init__(self, counter: OpCounter) -> None:
        self.counter = counter
        self.before_ema: tuple[int, int] = (0, 0)
        self.total: tuple[int, int] = (0, 0)
        self.sync_names: Counter[str] = Counter()

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to count."""
        self.counter.reset()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Store the counts of the step without the EMA."""
        self.before_ema = (self.counter.num_ops, self.counter.num_syncs)


class _CountingEMA(EMA):
    """Stores the counts of the step with the EMA."""

    def __init__(self, recorder: _StepRecorder) -> None:
        super().__init__(0.99)
        self.recorder = recorder

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the average and store the counts."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        counter = self.recorder.counter
        self.recorder.total = (counter.num_ops, counter.num_syncs)
        self.recorder.sync_names = counter.syncs.copy()


def count_step(
    title: str, build: Callable[[], tuple[Task, Any]], accelerator: str = "cpu"
) -> StepCount:
    """Return the counts of the last of a few training steps.

    Args:
        title: Name of the model.
        build: Creates a task and a batch.
        accelerator: Lightning's name of the device.
    """
    task, batch = build()
    recorder = _StepRecorder(OpCounter())
    trainer = Trainer(
        accelerator=accelerator,
        devices=1,
        max_steps=STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[recorder, SkipNonFiniteSteps(), _CountingEMA(recorder)],
        log_every_n_steps=10 * STEPS,
    )
    with recorder.counter:
        trainer.fit(task, DataLoader(Repeated(batch), batch_size=None))
    (ops, syncs), (others, other_syncs) = recorder.total, recorder.before_ema
    return StepCount(
        title, ops, ops - others, syncs, syncs - other_syncs, dict(recorder.sync_names)
    )


def vit() -> tuple[Task, Any]:
    """Return a Vision Transformer of 12 narrow layers, and a batch."""
    task = ClassificationTask(
        partial(VisionTransformer, img_size=(32, 32), patch_size=8, embed_dim=24, num_heads=3),
        {"class_names": list("abcde")},
        optim=_FUSED,
    )
    return task, _labeled_batch(3, 32)


def ram() -> tuple[Task, Any]:
    """Return the recurrent attention model with six glimpses, and a batch."""
    model = partial(RecurrentAttentionModel, img_size=(28, 28), mean=[0.5], std=[0.5])
    task = GlimpseTask(model, {"class_names": list("0123456789")}, optim=_FUSED)
    return task, _labeled_batch(1, 28)


def captioner() -> tuple[Task, Any]:
    """Return a Show, Attend and Tell captioner, and a batch of captions of 12 to 20 words."""
    words = [
        "a",
        "photo",
        "of",
        "the",
        "red",
        "and",
        "blue",
        "bird",
        "on",
        "green",
        "grass",
        "in",
        "some",
        "light",
        "rain",
        "at",
        "noon",
    ]
    captions = [" ".join(words[:length]) for length in range(12, 20)]
    vocabulary = Vocabulary.from_captions(captions)
    image = torch.zeros(3, 24, 24, dtype=torch.uint8)
    samples = [CaptionSample(str(n), image, (text,)) for n, text in enumerate(captions)]

    def build(words: list[str]) -> ShowAttendTell:
        encoder = SmallEncoder((24, 24), channels=8)
        return ShowAttendTell(words, encoder, embed_dim=7, hidden_size=11, attention_dim=5)

    task = CaptioningTask(build, {"words": list(vocabulary.words)}, optim=_FUSED)
    return task, collate_captions(samples, vocabulary)


MODELS: dict[str, Callable[[], tuple[Task, Any]]] = {
    "vit": vit,
    "ram": ram,
    "captioner": captioner,
}


def step_counts(parts: Any, accelerator: str = "cpu") -> Iterator[StepCount]:
    """Yield the counts of a training step of each model."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    silence_lightning()
    yield from (count_step(part, MODELS[part], accelerator) for part in parts)


def _labeled_batch(channels: int, side: int) -> LabeledBatch:
    images = torch.randint(256, (8, channels, side, side), dtype=torch.uint8)
    return LabeledBatch(images, torch.arange(8) % 5)
