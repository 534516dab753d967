"""How often a glimpse model errs, after each glimpse, whoever chose the places."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import Metric

from visattn.data.loading.sample_seed import numbered_uniforms
from visattn.functional.glimpses.paths import raster_paths
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.training.data.classification import ClassificationDataModule


class ErrorPerGlimpse(Metric):
    """The share of wrong answers after each glimpse, over everything that was seen.

    Args:
        glimpses: How many an image gets.

    Example:
        >>> errors = ErrorPerGlimpse(2)
        >>> errors.update(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), torch.tensor([1]))
        >>> errors.compute()
        tensor([1., 0.])
    """

    full_state_update = False
    wrong: Tensor
    count: Tensor

    def __init__(self, glimpses: int) -> None:
        super().__init__()
        self.add_state("wrong", torch.zeros(glimpses, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, " n"]) -> None:
        """Take in scores, or probabilities, after each glimpse, and the true classes."""
        self.wrong += (scores.argmax(-1) != labels[:, None]).sum(0)
        self.count += len(labels)

    def compute(self) -> Float[Tensor, " t"]:
        """Return the errors so far, as shares; NaN over nothing."""
        return self.wrong / self.count


@dataclass(frozen=True)
class GlimpseEvaluator:
    """Ways to look at images, the same for the same image each time.

    What is drawn belongs to the number of an image: batches and processes make no difference.

    Args:
        starts: How often each image is looked at from another start, for the mean error; once
            if the model always starts at the same place.
        samples: Rollouts whose probabilities are averaged; 0 leaves out what is sampled.
        seed: Of starts, random paths and samples.

    Raises:
        ValueError: If there is no start, or a number below 0.

    Example:
        >>> GlimpseEvaluator(samples=10).names()
        ('mean', 'random', 'raster', 'sampled', 'averaged')
    """

    starts: int = 1
    samples: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.starts < 1 or self.samples < 0:
            raise ValueError(
                f"starts must be at least 1 and samples at least 0, got {self.starts} and "
                f"{self.samples}"
            )

    def names(self, *, aimed: bool = False) -> tuple[str, ...]:
        """Return the ways: the policy's means come first.

        Args:
            aimed: The middles of what is to be named are known, so that one can start there.
        """
        sampled = ("sampled", "averaged") if self.samples else ()
        return ("mean", "random", "raster", *(["aimed"] if aimed else []), *sampled)

    def score(self, name: str, glimpses: int = 0) -> str:
        """Return how the error of a way is called.

        Args:
            name: Of the way.
            glimpses: How many an image gets.

        Example:
            >>> GlimpseEvaluator().score("mean"), GlimpseEvaluator(samples=5).score("averaged", 7)
            ('error', 'error_averaged_5x7_glimpses')
        """
        if name == "averaged":
            return f"error_averaged_{self.samples}x{glimpses}_glimpses"
        return "error" if name == "mean" else f"error_{name}"

    def run(
        self,
        model: RecurrentAttentionModel,
        images: UInt8[Tensor, "b _ y x"],
        numbers: Sequence[int],
        centers: Float[Tensor, "b 2"] | None = None,
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Give, for each way, what the model says after each glimpse.

        Args:
            model: The model.
            images: As bytes.
            numbers: Of the images, in all that is looked at.
            centers: The middle of what is to be named, x and y in [-1, 1]: the first place of the
                way that is `aimed`, which is left out without them.

        Raises:
            ValueError: If the images are not those of the model, or the policy gives a place that
                is no number.
        """
        shown, steps = model.normalized(images), model.glimpses
        starts = self.starts if model.start == "random" else 1
        parts = [2 * starts, 2 * steps, *[2 + 2 * steps] * self.samples]
        drawn = numbered_uniforms(self.seed, numbers, sum(parts)).split(parts, 1)
        for start in _places(drawn[0], shown).unbind(1):
            yield "mean", _said(model, shown, start=_start(model, start))
        paths = {"random": _places(drawn[1], shown), "raster": raster_paths(len(shown), steps)}
        for name, path in paths.items():
            yield name, _said(model, shown, path=path.to(shown))
        if centers is not None:
            yield "aimed", _said(model, shown, start=centers.to(shown))
        if self.samples:
            said = torch.stack([_sampled(model, shown, one) for one in drawn[2:]])
            yield "sampled", said[0]
            yield "averaged", said.softmax(-1).mean(0)


def known_centers(trainer: Trainer) -> Float[Tensor, "n 2"] | None:
    """Return the middles of what is to be named in all images of a validation or a test.

    Returns:
        x and y in [-1, 1]; None in training, and of data that do not know them.
    """
    data, stage = getattr(trainer, "datamodule", None), trainer.state.fn
    if stage == TrainerFn.FITTING or not isinstance(data, ClassificationDataModule):
        return None
    return data.centers("test" if stage == TrainerFn.TESTING else "validation")


@torch.no_grad()
def _said(model: RecurrentAttentionModel, shown: Tensor, **options: Any) -> Float[Tensor, "b t k"]:
    """Return the scores of a rollout; a generator cannot switch gradients off for itself alone."""
    return model.roll_out(shown, **options).scores[:, 0]


def _sampled(
    model: RecurrentAttentionModel, shown: Tensor, drawn: Float[Tensor, "b n"]
) -> Float[Tensor, "b t k"]:
    """Return the scores of a rollout that looks at samples of the policy."""
    start, steps = _start(model, _places(drawn[:, :2], shown)[:, 0]), drawn[:, 2:]
    inside = steps.clamp(2.0**-54, 1 - 2.0**-53)  # at 0 and 1 a Gaussian is infinitely far off
    noise = torch.special.ndtri(inside).unflatten(1, (1, -1, 2)).to(shown)
    return _said(model, shown, start=start, sampled=True, noise=noise)


def _places(drawn: Float[Tensor, "b n"], shown: Tensor) -> Float[Tensor, "b _ 2"]:
    """Return places anywhere on the image for numbers even in [0, 1)."""
    return (2 * drawn - 1).unflatten(1, (-1, 2)).to(shown)


def _start(
    model: RecurrentAttentionModel, places: Float[Tensor, "b 2"]
) -> Float[Tensor, "b 2"] | None:
    """Return first places where the model takes any; else it knows its own."""
    return places if model.start == "random" else None
