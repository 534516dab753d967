"""The ways in which a glimpse model is tried: as it is used, and as its policy must beat."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from visattn.data.numbered_draws import numbered_uniforms
from visattn.functional.scan_paths import raster_paths
from visattn.models.glimpse_models import GlimpseModel
from visattn.tasks.class_data import ClassData


@dataclass(frozen=True)
class Trials:
    """Ways to look at pictures, the same for the same picture each time.

    What is drawn belongs to the number of a picture: batches and processes make no difference.

    Args:
        starts: How often each picture is looked at from another start, for the mean error; once
            if the model always starts at the same place.
        samples: Rollouts whose probabilities are averaged; 0 leaves out what is sampled.
        seed: Of starts, random paths and samples.

    Raises:
        ValueError: If there is no start, or a number below 0.

    Example:
        >>> Trials(samples=10).names()
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
            glimpses: How many a picture gets.

        Example:
            >>> Trials().score("mean"), Trials(samples=5).score("averaged", 7)
            ('error', 'error_averaged_5x7_glimpses')
        """
        if name == "averaged":
            return f"error_averaged_{self.samples}x{glimpses}_glimpses"
        return "error" if name == "mean" else f"error_{name}"

    def run(
        self,
        model: GlimpseModel,
        pictures: UInt8[Tensor, "b _ y x"],
        numbers: Sequence[int],
        centres: Float[Tensor, "b 2"] | None = None,
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Give, for each way, what the model says after each glimpse.

        Args:
            model: The model.
            pictures: As bytes.
            numbers: Of the pictures, in all that is looked at.
            centres: The middle of what is to be named, x and y in [-1, 1]: the first place of the
                way that is `aimed`, which is left out without them.

        Raises:
            ValueError: If the pictures are not those of the model, or the policy gives a place that
                is no number.
        """
        shown, steps = model.normalised(pictures), model.glimpses
        starts = self.starts if model.start == "random" else 1
        parts = [2 * starts, 2 * steps, *[2 + 2 * steps] * self.samples]
        drawn = numbered_uniforms(self.seed, numbers, sum(parts)).split(parts, 1)
        for start in _places(drawn[0], shown).unbind(1):
            yield "mean", _said(model, shown, start=_start(model, start))
        paths = {"random": _places(drawn[1], shown), "raster": raster_paths(len(shown), steps)}
        for name, path in paths.items():
            yield name, _said(model, shown, path=path.to(shown))
        if centres is not None:
            yield "aimed", _said(model, shown, start=centres.to(shown))
        if self.samples:
            said = torch.stack([_sampled(model, shown, one) for one in drawn[2:]])
            yield "sampled", said[0]
            yield "averaged", said.softmax(-1).mean(0)


def known_centres(trainer: Trainer) -> Float[Tensor, "n 2"] | None:
    """Return the middles of what is to be named in all pictures of a validation or a test.

    Returns:
        x and y in [-1, 1]; None in training, and of data that do not know them.
    """
    data, stage = getattr(trainer, "datamodule", None), trainer.state.fn
    if stage == TrainerFn.FITTING or not isinstance(data, ClassData):
        return None
    return data.centres("test" if stage == TrainerFn.TESTING else "validation")


@torch.no_grad()
def _said(model: GlimpseModel, shown: Tensor, **options: Any) -> Float[Tensor, "b t k"]:
    """Return the scores of a rollout; a generator cannot switch gradients off for itself alone."""
    return model.roll_out(shown, **options).scores[:, 0]


def _sampled(
    model: GlimpseModel, shown: Tensor, drawn: Float[Tensor, "b n"]
) -> Float[Tensor, "b t k"]:
    """Return the scores of a rollout that looks at samples of the policy."""
    start, steps = _start(model, _places(drawn[:, :2], shown)[:, 0]), drawn[:, 2:]
    inside = steps.clamp(2.0**-54, 1 - 2.0**-53)  # at 0 and 1 a Gaussian is infinitely far off
    noise = torch.special.ndtri(inside).unflatten(1, (1, -1, 2)).to(shown)
    return _said(model, shown, start=start, sampled=True, noise=noise)


def _places(drawn: Float[Tensor, "b n"], shown: Tensor) -> Float[Tensor, "b _ 2"]:
    """Return places anywhere on the picture for numbers even in [0, 1)."""
    return (2 * drawn - 1).unflatten(1, (-1, 2)).to(shown)


def _start(model: GlimpseModel, places: Float[Tensor, "b 2"]) -> Float[Tensor, "b 2"] | None:
    """Return first places where the model takes any; else it knows its own."""
    return places if model.start == "random" else None
