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

from visattn.data.classification.datasets import LabeledBatch
from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.data.loading.sample_seed import per_sample_uniforms
from visattn.models.ram.glimpse_model import GlimpseModel
from visattn.models.ram.paths import raster_scanpaths
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.data.digit_sequences import DigitSequenceDataModule
from visattn.training.data_module import DataModule
from visattn.training.tasks.glimpse_rewards import label_per_glimpse, label_sequences
from visattn.training.tasks.glimpse_supervision import digit_scanpaths


class ErrorPerGlimpse(Metric):
    """The error rate after each glimpse, of the label that the glimpse is to read.

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
        for name in ("wrong", "count"):
            zeros = torch.zeros(num_glimpses, dtype=torch.int64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, "n ..."]) -> None:
        """Add logits or probabilities after each glimpse, and the true classes."""
        targets = label_per_glimpse(labels, scores.shape[1])
        present = targets != IGNORE_LABEL
        self.wrong += ((scores.argmax(-1) != targets) & present).sum(0)
        self.count += present.sum(0)

    def compute(self) -> Float[Tensor, " t"]:
        """Return the error rate after each glimpse; NaN without a label to read."""
        return self.wrong / self.count


class SequenceError(Metric):
    """The fraction of images of which any label is wrong after the last of its glimpses.

    With one label per image, it is the error rate after the last glimpse.

    Example:
        >>> error = SequenceError()
        >>> scores = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 0.0], [9.0, 0.0]]])
        >>> error.update(scores, torch.tensor([[0, 1], [0, 1]]))
        >>> error.compute()
        tensor(0.5000)
    """

    full_state_update = False
    wrong: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("wrong", "count"):
            zero = torch.zeros((), dtype=torch.int64)
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, "n ..."]) -> None:
        """Add logits or probabilities after each glimpse, and the true classes."""
        labels = label_sequences(labels)
        step = scores.shape[1] // labels.shape[1]
        wrong = scores[:, step - 1 :: step].argmax(-1) != labels
        self.wrong += (wrong & (labels != IGNORE_LABEL)).any(1).sum()
        self.count += len(labels)

    def compute(self) -> Float[Tensor, ""]:
        """Return the error rate; NaN before the first update."""
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
        model: GlimpseModel,
        images: UInt8[Tensor, "b _ y x"],
        indices: Sequence[int],
        centers: Float[Tensor, "b 2"] | Float[Tensor, "b t 2"] | None = None,
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Yield each source of locations with the logits after each glimpse.

        Args:
            model: The model.
            images: Images as uint8.
            indices: Indices of the images in the whole split.
            centers: Centers of the objects, x and y in [-1, 1], for the source `centered`: the
                first location of the greedy policy, or all locations. Without them the source is
                left out.

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
            name = "init_locations" if centers.ndim == 2 else "locations"
            yield "centered", _logits(model, inputs, **{name: centers.to(inputs)})
        if self.num_samples:
            logits = torch.stack([_sampled_logits(model, inputs, part) for part in uniforms[2:]])
            yield "sampled", logits[0]
            yield "averaged", logits.softmax(-1).mean(0)


def object_centers(trainer: Trainer) -> Float[Tensor, "n 2"] | None:
    """Return the centers of the objects in all images of the split that is evaluated.

    Returns:
        x and y in [-1, 1]; None during `fit`, and for data that do not know the centers or have
        several objects per image.
    """
    data, stage = getattr(trainer, "datamodule", None), trainer.state.fn
    if stage == TrainerFn.FITTING or not isinstance(data, DataModule):
        return None
    return data.centers("test" if stage == TrainerFn.TESTING else "validation")


def batch_centers(
    trainer: Trainer,
    model: GlimpseModel,
    batch: LabeledBatch | DigitSequenceBatch,
    indices: Sequence[int],
) -> Float[Tensor, "b 2"] | Float[Tensor, "b t 2"] | None:
    """Return the centers of the objects in the images of a batch.

    Args:
        trainer: The trainer of the split that is evaluated.
        model: The model.
        batch: Images of the split.
        indices: Their indices in the split.

    Returns:
        x and y in [-1, 1] of the only object, or for each glimpse those of the object that it is to
        read; None if `knows_centers` is false.
    """
    if not knows_centers(trainer):
        return None
    if isinstance(batch, DigitSequenceBatch):
        return digit_scanpaths(model, batch)
    centers = object_centers(trainer)
    return None if centers is None else centers[list(indices)]


def knows_centers(trainer: Trainer) -> bool:
    """Return whether the centers of the objects are known, outside of `fit`."""
    if trainer.state.fn == TrainerFn.FITTING:
        return False
    data = getattr(trainer, "datamodule", None)
    return isinstance(data, DigitSequenceDataModule) or object_centers(trainer) is not None


@torch.no_grad()  # on a function, since a generator would leak the setting to its caller
def _logits(model: GlimpseModel, inputs: Tensor, **options: Any) -> Float[Tensor, "b t k"]:
    return model.rollout(inputs, **options).logits[:, 0]


def _sampled_logits(
    model: GlimpseModel, inputs: Tensor, uniforms: Float[Tensor, "b n"]
) -> Float[Tensor, "b t k"]:
    """Return the logits of a rollout at locations sampled from the policy."""
    start = _start(model, _to_locations(uniforms[:, :2], inputs)[:, 0])
    inside = uniforms[:, 2:].clamp(2.0**-54, 1 - 2.0**-53)  # the quantiles of 0 and 1 are infinite
    noise = torch.special.ndtri(inside).unflatten(1, (1, -1, 2)).to(inputs)
    return _logits(model, inputs, init_locations=start, sample=True, noise=noise)


def _to_locations(uniforms: Float[Tensor, "b n"], inputs: Tensor) -> Float[Tensor, "b _ 2"]:
    """Return uniform locations on the image for uniform numbers in [0, 1)."""
    return (2 * uniforms - 1).unflatten(1, (-1, 2)).to(inputs)


def _start(model: GlimpseModel, locations: Float[Tensor, "b 2"]) -> Float[Tensor, "b 2"] | None:
    """Return initial locations, or None for a model that has its own."""
    return locations if model.init_location == "random" else None
