"""Speed of glimpse extraction and of a training epoch compared with a loop over images."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from torch import Tensor

from benchmarks.clocks import in_turn
from benchmarks.plain_glimpses import plain_epoch, plain_loss, plain_retina
from visattn.data.classification.datasets import InMemoryImages
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.models.glimpses.retina import crop_glimpses, glimpse_pyramid
from visattn.results.kinds import Split
from visattn.training.classification.data import ClassificationDataModule
from visattn.training.cli.lightning_cli import silence_lightning
from visattn.training.glimpses.task import GlimpseTask

SECONDS = 3.0  # minimum duration of a comparison
BATCH = 128


class RetinaCase(NamedTuple):
    """Sizes of a glimpse extraction, and the target speedup."""

    side: int
    glimpse: int
    scales: int
    glimpses: int
    rollouts: int
    floor: float | None


RETINAS = (
    RetinaCase(28, 8, 1, 6, 1, 15.0),
    RetinaCase(60, 12, 3, 8, 10, 35.0),
    RetinaCase(100, 12, 4, 8, 1, None),
)


class GlimpseSpeed(NamedTuple):
    """Result of a comparison.

    Args:
        title: Description of the timed computation.
        plain_s: Median seconds of the plain implementation.
        ours_s: Median seconds of visattn.
        ratio: Median speedup over the rounds.
        least: Minimum speedup.
        most: Maximum speedup.
        floor: Target of the speedup, as a minimum.
        ceiling: Target of the seconds of visattn, as a maximum.
    """

    title: str
    plain_s: float
    ours_s: float
    ratio: float
    least: float
    most: float
    floor: float | None
    ceiling: float | None

    def __str__(self) -> str:
        targets = [f"target: {self.floor:g} or more"] if self.floor else []
        targets += [f"target: ours {self.ceiling:g} s or less"] if self.ceiling else []
        spread = "; ".join([f"{self.least:.2f} to {self.most:.2f}", *targets])
        return (
            f"{self.title}: plain {_format_seconds(self.plain_s)}, "
            f"ours {_format_seconds(self.ours_s)}, "
            f"{self.ratio:.2f} times as fast ({spread})"
        )


class RandomDigits(ClassificationDataModule):
    """Random images with the size of MNIST digits."""

    def __init__(self, count: int) -> None:
        super().__init__(None, batch_size=BATCH, num_workers=0, seed=0)
        random = torch.Generator().manual_seed(0)
        self.digits = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=random)
        self.labels = torch.randint(10, (count,), generator=random)

    @property
    def data_info(self) -> dict[str, Any]:
        """Class names."""
        return {"class_names": list("0123456789")}

    def open_dataset(self, split: Split) -> InMemoryImages:
        """Return all digits for training, and one batch for validation and test."""
        labels = self.labels if split == "train" else self.labels[:BATCH]
        return InMemoryImages(self.digits[: len(labels)], labels)


def time_glimpses(*, rounds: int, digits: int = 60_000) -> Iterator[GlimpseSpeed]:
    """Time glimpse extraction at three sizes, then a training epoch if `digits` is not 0."""
    for case in RETINAS:
        plain, ours = retina_runs(case)
        title = (
            f"retina, {case.rollouts} x {BATCH} images of {case.side} px, {case.glimpses} "
            f"glimpses of {case.glimpse} px at {case.scales} scales"
        )
        yield _time_runs(title, plain, ours, rounds, floor=case.floor)
    if digits:
        plain, ours = epoch_runs(digits)
        title = f"training epoch of {digits} digits, 6 glimpses of 8 px, 1 rollout"
        ceiling = 12.0 if digits == 60_000 else None
        yield _time_runs(title, plain, ours, max(1, rounds // 3), ceiling=ceiling)


def retina_runs(
    case: RetinaCase, batch: int = BATCH
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the extraction of all glimpses of a batch, plain and by visattn.

    Raises:
        AssertionError: If the glimpses differ.
    """
    images = torch.rand(batch, 1, case.side, case.side)
    path = torch.rand(batch * case.rollouts, case.glimpses, 2) * 2 - 1
    image_indices = torch.arange(batch).repeat_interleave(case.rollouts)

    def ours() -> list[Tensor]:
        pyramid = glimpse_pyramid(images, num_scales=case.scales)
        return [
            crop_glimpses(
                pyramid, locations, glimpse_size=case.glimpse, image_indices=image_indices
            )
            for locations in path.unbind(1)
        ]

    def plain() -> list[Tensor]:
        return plain_retina(
            images, path, glimpse=case.glimpse, scales=case.scales, rollouts=case.rollouts
        )

    torch.testing.assert_close(ours(), plain())
    return plain, ours


def epoch_runs(digits: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a training epoch with data loading, plain and by visattn, with the same loss.

    Raises:
        AssertionError: If the losses differ.
    """
    data = RandomDigits(digits)
    tasks = [build_task(data), build_task(data)]
    check_same_loss(tasks[0], data.digits[:BATCH], data.labels[:BATCH])
    silence_lightning()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

    def ours() -> None:
        Trainer(
            accelerator="cpu",
            max_epochs=1,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(tasks[0], data)

    def plain() -> None:
        plain_epoch(
            recurrent_model(tasks[1]), baseline_layer(tasks[1]), data.digits, data.labels, BATCH
        )

    return plain, ours


def build_task(data: RandomDigits) -> GlimpseTask:
    """Return a task with the RAM model, one rollout and a learned baseline."""

    def model(classes: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(classes, (28, 28), [0.1307], [0.3081], rnn_type="rnn")

    return GlimpseTask(model, data.data_info, baseline="learned")


def baseline_layer(task: GlimpseTask) -> torch.nn.Module:
    """Return the layer that predicts the expected reward.

    Raises:
        ValueError: If the task has no learned baseline.
    """
    if task.value_baseline is None:
        raise ValueError("the task must have a learned baseline, got none")
    return task.value_baseline.output


def recurrent_model(task: GlimpseTask) -> RecurrentAttentionModel:
    """Return the model of a task.

    Raises:
        TypeError: If it is another glimpse model.
    """
    if not isinstance(task.model, RecurrentAttentionModel):
        raise TypeError(f"the benchmark times RecurrentAttentionModel, got {type(task.model)}")
    return task.model


def check_same_loss(task: GlimpseTask, digits: Tensor, labels: Tensor) -> None:
    """Compare the loss and the policy gradients of both implementations.

    Raises:
        AssertionError: If they differ.
    """
    model = recurrent_model(task)
    images = model.normalize(digits)
    start = torch.rand(len(digits), 2) * 2 - 1
    noise = torch.randn(len(digits), model.num_glimpses, 2)
    rollout = model.rollout(images, sample=True, init_locations=start, noise=noise[:, None])
    ours = task.losses(rollout, labels).total
    plain = plain_loss(model, baseline_layer(task), images, labels, start, noise)
    gradients = [
        torch.autograd.grad(loss, [*model.policy.mean.parameters()]) for loss in (ours, plain)
    ]
    torch.testing.assert_close((ours, gradients[0]), (plain, gradients[1]), atol=1e-5, rtol=1e-4)


def _time_runs(
    title: str,
    plain: Callable[[], object],
    ours: Callable[[], object],
    rounds: int,
    *,
    floor: float | None = None,
    ceiling: float | None = None,
) -> GlimpseSpeed:
    timings = in_turn({"ours": ours, "plain": plain}, rounds, seconds_at_least=SECONDS)
    _, ratio, least, most = timings["plain"]
    seconds = timings["plain"].seconds, timings["ours"].seconds
    return GlimpseSpeed(title, *seconds, ratio, least, most, floor, ceiling)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
