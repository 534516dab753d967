"""How fast the retina is, and an epoch of training, beside looking at image after image."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from torch import Tensor

from benchmarks.clocks import in_turn
from benchmarks.plain_glimpses import plain_epoch, plain_loss, plain_retina
from visattn.data.classification.datasets import HeldImages
from visattn.functional.glimpses.retina import cropped_glimpses, glimpse_pyramid
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.training.cli.lightning_cli import quieten
from visattn.training.data.classification import ClassificationDataModule, Split
from visattn.training.tasks.glimpse import GlimpseTask

SECONDS = 3.0  # at least, of each comparison
BATCH = 128


class RetinaCase(NamedTuple):
    """What is looked at, and how many times as fast as the plain way it is meant to be."""

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
    """What was found.

    Args:
        title: What was timed.
        plain_s: Seconds of the plain way, the median.
        ours_s: Seconds of ours, the median.
        ratio: The median over the rounds of how many times as fast ours is.
        least: The smallest.
        most: The largest.
        floor: What the ratio is meant to be at least.
        ceiling: What our seconds are meant to be at most.
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
        meant = [f"at least {self.floor:g} is meant"] if self.floor else []
        meant += [f"ours at most {self.ceiling:g} s is meant"] if self.ceiling else []
        spread = "; ".join([f"{self.least:.2f} to {self.most:.2f}", *meant])
        return (
            f"{self.title}: plain {_spent(self.plain_s)}, ours {_spent(self.ours_s)}, "
            f"{self.ratio:.2f} times as fast ({spread})"
        )


class MadeUpDigits(ClassificationDataModule):
    """Noise of the size of MNIST's digits, read as those are."""

    def __init__(self, count: int) -> None:
        super().__init__(None, batch=BATCH, workers=0, seed=0)
        random = torch.Generator().manual_seed(0)
        self.digits = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=random)
        self.labels = torch.randint(10, (count,), generator=random)

    @property
    def data_info(self) -> dict[str, Any]:
        """Names of the classes."""
        return {"classes": list("0123456789")}

    def part(self, split: Split) -> HeldImages:
        """Return all digits for training, and a batch of them for the rest."""
        labels = self.labels if split == "train" else self.labels[:BATCH]
        return HeldImages(self.digits[: len(labels)], labels)


def timed_glimpses(*, rounds: int, digits: int = 60_000) -> Iterator[GlimpseSpeed]:
    """Time the retina at three sizes, then an epoch of so many digits; of none if 0."""
    for case in RETINAS:
        plain, ours = retina_ways(case)
        title = (
            f"retina, {case.rollouts} x {BATCH} images of {case.side} px, {case.glimpses} "
            f"glimpses of {case.glimpse} px at {case.scales} scales"
        )
        yield _timed(title, plain, ours, rounds, floor=case.floor)
    if digits:
        plain, ours = epoch_ways(digits)
        title = f"training epoch of {digits} digits, 6 glimpses of 8 px, 1 rollout"
        ceiling = 12.0 if digits == 60_000 else None
        yield _timed(title, plain, ours, max(1, rounds // 3), ceiling=ceiling)


def retina_ways(
    case: RetinaCase, batch: int = BATCH
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the plain way and ours to see all glimpses of a batch, which see the same.

    Raises:
        AssertionError: If they do not.
    """
    images = torch.rand(batch, 1, case.side, case.side)
    path = torch.rand(batch * case.rollouts, case.glimpses, 2) * 2 - 1
    which = torch.arange(batch).repeat_interleave(case.rollouts)

    def ours() -> list[Tensor]:
        shown = glimpse_pyramid(images, scales=case.scales)
        return [
            cropped_glimpses(shown, places, glimpse=case.glimpse, which=which)
            for places in path.unbind(1)
        ]

    def plain() -> list[Tensor]:
        return plain_retina(
            images, path, glimpse=case.glimpse, scales=case.scales, rollouts=case.rollouts
        )

    torch.testing.assert_close(ours(), plain())
    return plain, ours


def epoch_ways(digits: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the plain way and ours to train for an epoch, data included, with the same loss.

    Raises:
        AssertionError: If the losses differ.
    """
    data = MadeUpDigits(digits)
    tasks = [made_task(data), made_task(data)]
    check_same_loss(tasks[0], data.digits[:BATCH], data.labels[:BATCH])
    quieten()
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
        plain_epoch(tasks[1].model, baseline_of(tasks[1]), data.digits, data.labels, BATCH)

    return plain, ours


def made_task(data: MadeUpDigits) -> GlimpseTask:
    """Return the paper's model, to be trained with one rollout and a learned baseline."""

    def model(classes: list[str]) -> RecurrentAttentionModel:
        return RecurrentAttentionModel(classes, (28, 28), [0.1307], [0.3081], core="rnn")

    return GlimpseTask(model, data.data_info, baseline="learned")


def baseline_of(task: GlimpseTask) -> torch.nn.Module:
    """Return the layer that reads what reward is to be expected."""
    if task.critic is None:
        raise ValueError("a task with a learned baseline has a critic; this one has none")
    return task.critic.reading


def check_same_loss(task: GlimpseTask, digits: Tensor, labels: Tensor) -> None:
    """Compare the loss and its gradient in the policy.

    Raises:
        AssertionError: If they differ.
    """
    model = task.model
    images = model.normalized(digits)
    start = torch.rand(len(digits), 2) * 2 - 1
    noise = torch.randn(len(digits), model.glimpses, 2)
    looks = model.roll_out(images, sampled=True, start=start, noise=noise[:, None])
    ours = task.losses(looks, labels).total
    plain = plain_loss(model, baseline_of(task), images, labels, start, noise)
    slopes = [
        torch.autograd.grad(loss, [*model.policy.mean.parameters()]) for loss in (ours, plain)
    ]
    torch.testing.assert_close((ours, slopes[0]), (plain, slopes[1]), atol=1e-5, rtol=1e-4)


def _timed(
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
    spent = timings["plain"].seconds, timings["ours"].seconds
    return GlimpseSpeed(title, *spent, ratio, least, most, floor, ceiling)


def _spent(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
