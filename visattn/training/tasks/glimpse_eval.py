"""Error rates of glimpse models after each glimpse, for learned and unlearned locations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from lightning import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import Metric

from visattn.data.loading.sample_seed import per_sample_uniforms
from visattn.functional.glimpses.paths import raster_scanpaths
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.training.data.classification import ClassificationDataModule


class ErrorPerGlimpse(Metric):
    """The error rate after each glimpse.

    Args:
        num_glimpses: Glimpses per image.

    Example:
        >>> errors = ErrorPerGlimpse(2)
        >>> errors.update(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), torch.tensor([1]))
        >>> errors.compute()
        tensor([1., 0.])
    """

    full_state_update = False
    wrong: Tensor
    count: Tensor

    def __init__(self, num_glimpses: int) -> None:
        super().__init__()
        zeros = torch.zeros(num_glimpses, dtype=torch.int64)
        self.add_state("wrong", zeros, dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, " n"]) -> None:
        """Add logits or probabilities after each glimpse, and the true classes."""
        self.wrong += (scores.argmax(-1) != labels[:, None]).sum(0)
        self.count += len(labels)

    def compute(self) -> Float[Tensor, " t"]:
        """Return the error rate after each glimpse; NaN before the first update."""
        return self.wrong / self.count


@dataclass(frozen=True)
class GlimpseEvaluator:
    """Evaluates a glimpse model with several sources of locations.

    Random numbers belong to the index of an image, so that the batch size and the number of
    processes make no difference.

    Args:
        num_starts: Initial locations per image over which the error of the greedy policy is
            averaged; a model with a fixed initial location has one.
        num_samples: Sampled rollouts whose probabilities are averaged; 0 disables sampling.
        seed: Seed of initial locations, random locations and samples.

    Raises:
        ValueError: If `num_starts` is below 1 or `num_samples` below 0.

    Example:
        >>> GlimpseEvaluator(num_samples=10).location_sources()
        ('greedy', 'random', 'raster', 'sampled', 'averaged')
    """

    num_starts: int = 1
    num_samples: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_starts < 1 or self.num_samples < 0:
            raise ValueError(
                "num_starts must be at least 1 and num_samples at least 0, got "
                f"{self.num_starts} and {self.num_samples}"
            )

    def location_sources(self, *, centered: bool = False) -> tuple[str, ...]:
        """Return the sources of locations, the greedy policy first.

        Args:
            centered: Whether the centers of the objects are known, so that the policy can start
                there.
        """
        sampled = ("sampled", "averaged") if self.num_samples else ()
        return ("greedy", "random", "raster", *(["centered"] if centered else []), *sampled)

    def error_name(self, source: str, num_glimpses: int = 0) -> str:
        """Return the metric name of the error with a source of locations.

        Args:
            source: One of `location_sources`.
            num_glimpses: Glimpses per image.

        Example:
            >>> GlimpseEvaluator().error_name("greedy")
            'error'
            >>> GlimpseEvaluator(num_samples=5).error_name("averaged", 7)
            'error_averaged_5x7_glimpses'
        """
        if source == "averaged":
            return f"error_averaged_{self.num_samples}x{num_glimpses}_glimpses"
        return "error" if source == "greedy" else f"error_{source}"

    def evaluate(
        self,
        model: RecurrentAttentionModel,
        images: UInt8[Tensor, "b _ y x"],
        indices: Sequence[int],
        centers: Float[Tensor, "b 2"] | None = None,
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Yield each source of locations with the logits after each glimpse.

        Args:
            model: The model.
            images: Images as uint8.
            indices: Indices of the images in the whole split.
            centers: Centers of the objects, x and y in [-1, 1], the initial locations of the
                source `centered`; without them it is left out.

        Raises:
            ValueError: If the images do not fit the model, or a location is not finite.
        """
        inputs, num_glimpses = model.normalize(images), model.num_glimpses
        num_starts = self.num_starts if model.init_location == "random" else 1
        counts = [2 * num_starts, 2 * num_glimpses, *[2 + 2 * num_glimpses] * self.num_samples]
        uniforms = per_sample_uniforms(self.seed, indices, sum(counts)).split(counts, 1)
        for start in _to_locations(uniforms[0], inputs).unbind(1):
            yield "greedy", _logits(model, inputs, init_locations=_start(model, start))
        fixed = {
            "random": _to_locations(uniforms[1], inputs),
            "raster": raster_scanpaths(len(inputs), num_glimpses).to(inputs),
        }
        for source, locations in fixed.items():
            yield source, _logits(model, inputs, locations=locations)
        if centers is not None:
            yield "centered", _logits(model, inputs, init_locations=centers.to(inputs))
        if self.num_samples:
            logits = torch.stack([_sampled_logits(model, inputs, part) for part in uniforms[2:]])
            yield "sampled", logits[0]
            yield "averaged", logits.softmax(-1).mean(0)


def object_centers(trainer: Trainer) -> Float[Tensor, "n 2"] | None:
    """Return the centers of the objects in all images of the split that is evaluated.

    Returns:
        x and y in [-1, 1]; None during `fit`, and for data that do not know the centers.
    """
    data, stage = getattr(trainer, "datamodule", None), trainer.state.fn
    if stage == TrainerFn.FITTING or not isinstance(data, ClassificationDataModule):
        return None
    return data.centers("test" if stage == TrainerFn.TESTING else "validation")


@torch.no_grad()  # on a function, since a generator would leak the setting to its caller
def _logits(
    model: RecurrentAttentionModel, inputs: Tensor, **options: Any
) -> Float[Tensor, "b t k"]:
    return model.rollout(inputs, **options).logits[:, 0]


def _sampled_logits(
    model: RecurrentAttentionModel, inputs: Tensor, uniforms: Float[Tensor, "b n"]
) -> Float[Tensor, "b t k"]:
    """Return the logits of a rollout at locations sampled from the policy."""
    start = _start(model, _to_locations(uniforms[:, :2], inputs)[:, 0])
    inside = uniforms[:, 2:].clamp(2.0**-54, 1 - 2.0**-53)  # the quantiles of 0 and 1 are infinite
    noise = torch.special.ndtri(inside).unflatten(1, (1, -1, 2)).to(inputs)
    return _logits(model, inputs, init_locations=start, sample=True, noise=noise)


def _to_locations(uniforms: Float[Tensor, "b n"], inputs: Tensor) -> Float[Tensor, "b _ 2"]:
    """Return uniform locations on the image for uniform numbers in [0, 1)."""
    return (2 * uniforms - 1).unflatten(1, (-1, 2)).to(inputs)


def _start(
    model: RecurrentAttentionModel, locations: Float[Tensor, "b 2"]
) -> Float[Tensor, "b 2"] | None:
    """Return initial locations, or None for a model that has its own."""
    return locations if model.init_location == "random" else None
