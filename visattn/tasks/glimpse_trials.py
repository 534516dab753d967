"""The ways in which a glimpse model is tried: as it is used, and as its policy must beat."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.functional.scan_paths import random_paths, raster_paths
from visattn.models.glimpse_models import GlimpseModel


@dataclass(frozen=True)
class Trials:
    """Ways to look at pictures, the same for the same batch each time.

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

    def names(self) -> tuple[str, ...]:
        """Return the ways: the policy's means come first."""
        sampled = ("sampled", "averaged") if self.samples else ()
        return ("mean", "random", "raster", *sampled)

    def run(
        self, model: GlimpseModel, pictures: UInt8[Tensor, "b _ y x"], batch: int
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Give, for each way, what the model says after each glimpse.

        Args:
            model: The model.
            pictures: As bytes.
            batch: The number of the batch.

        Raises:
            ValueError: If the pictures are not those of the model, or the policy gives a place that
                is no number.
        """
        shown = model.normalised(pictures)
        drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + batch)
        count, steps = len(shown), model.glimpses
        starts = self.starts if model.start == "random" else 1
        for start in [_start(model, shown, drawn) for _ in range(starts)]:
            yield "mean", _said(model, shown, start=start)
        paths = {"random": random_paths(count, steps, drawn), "raster": raster_paths(count, steps)}
        for name, path in paths.items():
            yield name, _said(model, shown, path=path.to(shown))
        if self.samples:
            said = torch.stack([self._sampled(model, shown, drawn) for _ in range(self.samples)])
            yield "sampled", said[0]
            yield "averaged", said.softmax(-1).mean(0)

    def _sampled(
        self, model: GlimpseModel, shown: Tensor, drawn: torch.Generator
    ) -> Float[Tensor, "b t k"]:
        start = _start(model, shown, drawn)
        noise = torch.randn(len(shown), 1, model.glimpses, 2, generator=drawn).to(shown)
        return _said(model, shown, start=start, sampled=True, noise=noise)


@torch.no_grad()
def _said(model: GlimpseModel, shown: Tensor, **options: Any) -> Float[Tensor, "b t k"]:
    """Return the scores of a rollout; a generator cannot switch gradients off for itself alone."""
    return model.roll_out(shown, **options).scores[:, 0]


def _start(
    model: GlimpseModel, shown: Tensor, drawn: torch.Generator
) -> Float[Tensor, "b 2"] | None:
    """Return first places where the model takes any, the same each time; else it knows its own."""
    return random_paths(len(shown), 1, drawn)[:, 0].to(shown) if model.start == "random" else None
