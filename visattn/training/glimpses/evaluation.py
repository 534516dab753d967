"""Evaluation of glimpse models: error rates after each glimpse, and known centers of objects."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.data.loading import per_sample_uniforms
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.pipelines.scanpath import raster_scanpaths
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.glimpses.losses import label_sequences
from visattn.training.metrics import ClassCounts, Evaluation, Sums, WeightedMean, chance_level
from visattn.training.reduce import all_gather_union


def digit_scanpaths(
    model: RecurrentAttentionModel, batch: DigitSequenceBatch
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths over the centers of the digits on each canvas, from left to right.

    Each digit, and an `end_class`, gets the same number of glimpses; the path then stays at the
    last digit.
    """
    num_digits = batch.centers.shape[1] + (model.end_class is not None)
    step = max(1, model.num_glimpses // num_digits)
    digits = torch.arange(model.num_glimpses, device=batch.centers.device) // step
    digits = digits.minimum(batch.num_digits.unsqueeze(1) - 1)
    return batch.centers.gather(1, digits.unsqueeze(-1).expand(-1, -1, 2))


class GlimpseErrors(Sums):
    """The error rate after each glimpse, and the fraction of images with any wrong label.

    A glimpse is scored by the label it should read; the final error uses each label after its last
    glimpse.

    Example:
        >>> errors = GlimpseErrors(2)
        >>> errors.update(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), torch.tensor([1]))
        >>> errors.compute(), errors.per_glimpse()
        (tensor(0.), tensor([1., 0.]))
    """

    wrong: Tensor
    count: Tensor
    wrong_images: Tensor
    images: Tensor

    def __init__(self, num_glimpses: int) -> None:
        glimpses = (num_glimpses,)
        super().__init__(torch.int64, wrong=glimpses, count=glimpses, wrong_images=(), images=())

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, "n ..."]) -> None:
        """Add logits or probabilities after each glimpse, and the true classes."""
        targets = label_sequences(labels)[..., None]
        chosen = scores.argmax(-1).unflatten(1, (targets.shape[1], -1))  # [n s g]
        present = (targets != IGNORE_LABEL).expand_as(chosen)
        wrong = (chosen != targets) & present
        self.wrong += wrong.sum(0).flatten()
        self.count += present.sum(0).flatten()
        self.wrong_images += wrong[..., -1].any(1).sum()
        self.images += len(labels)

    def compute(self) -> Float[Tensor, ""]:
        """Return the fraction of images with a wrong label; NaN before the first update."""
        return self.wrong_images / self.images

    def per_glimpse(self) -> Float[Tensor, " t"]:
        """Return the error rate after each glimpse, over all processes; NaN without a label."""
        with self.sync_context():
            return self.wrong / self.count


SOURCES = ("greedy", "random", "raster", "centered", "sampled", "averaged")
"""Sources of glimpse locations in an evaluation."""


def evaluate_glimpses(
    model: RecurrentAttentionModel,
    images: UInt8[Tensor, "b _ y x"],
    indices: Sequence[int],
    centers: Float[Tensor, "b 2"] | Float[Tensor, "b t 2"] | None = None,
    *,
    num_starts: int = 1,
    num_samples: int = 0,
    seed: int = 0,
) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
    """Yield each source of locations with the logits, or mean probabilities, after each glimpse.

    Random numbers depend on the index of an image, not on the batch size or the number of
    processes.

    Args:
        model: The model.
        images: A batch of images.
        indices: Their indices in the whole split.
        centers: x and y in [-1, 1]: the first location of the greedy policy, or all locations, of
            the source `centered`, which is skipped without them.
        num_starts: Initial locations per image over which the error of the greedy policy is
            averaged; a model with a fixed initial location has one.
        num_samples: Sampled rollouts whose probabilities are averaged; 0 disables sampling.
        seed: Seed of initial locations, random locations and samples.
    """
    inputs = model.normalize(images)
    num_glimpses = model.num_glimpses
    # Random numbers per image, in pairs: the starts of the greedy policy; the random locations;
    # then for each sampled rollout its start and the noise of its t locations.
    starts = 2 * (num_starts if model.random_start else 1)
    counts = [starts, 2 * num_glimpses, *[2 + 2 * num_glimpses] * num_samples]
    uniforms = per_sample_uniforms(seed, indices, sum(counts)).split(counts, 1)
    for start in _to_locations(uniforms[0], inputs).unbind(1):
        yield "greedy", _logits(model, inputs, init_locations=_start(model, start))
    yield "random", _logits(model, inputs, locations=_to_locations(uniforms[1], inputs))
    raster = raster_scanpaths(len(inputs), num_glimpses).to(inputs)
    yield "raster", _logits(model, inputs, locations=raster)
    if centers is not None:
        # With a single object the greedy policy starts at its center; with several, the centers are
        # the path.
        name = "init_locations" if centers.ndim == 2 else "locations"
        yield "centered", _logits(model, inputs, **{name: centers.to(inputs)})
    if num_samples:
        logits = torch.stack([_sampled_logits(model, inputs, own) for own in uniforms[2:]])
        yield "sampled", logits[0]
        yield "averaged", logits.softmax(-1).mean(0)


class GlimpseEvaluation(Evaluation):
    """Errors of a split for each source of locations, after each glimpse and at the end."""

    names = ("loss", "error", "error_random", "error_raster")

    def __init__(self, model: RecurrentAttentionModel, num_samples: int) -> None:
        super().__init__()
        self.class_names = model.class_names
        self.has_chance_level = model.num_labels == 1
        self.error_names = {source: f"error_{source}" for source in SOURCES} | {
            "greedy": "error",
            "averaged": f"error_averaged_{num_samples}x{model.num_glimpses}_glimpses",
        }
        self.errors: Any = nn.ModuleDict(
            {name: GlimpseErrors(model.num_glimpses) for name in SOURCES}
        )
        self.loss = WeightedMean()
        self.label_counts = ClassCounts(len(model.class_names))
        self.num_images = 0

    def next_indices(self, count: int, *, rank: int, world_size: int) -> range:
        """Return the indices of the next images: of w processes, process r has r, r + w, ..."""
        first = self.num_images * world_size + rank
        self.num_images += count
        return range(first, first + count * world_size, world_size)

    def update(
        self,
        labels: Int[Tensor, "b ..."],
        logits_by_source: Iterable[tuple[str, Float[Tensor, "b t k"]]],
    ) -> None:
        """Add the labels of images and the results of `evaluate_glimpses`."""
        if self.has_chance_level:
            self.label_counts.update(labels.flatten())
        for source, logits in logits_by_source:
            self.errors[source].update(logits, labels)
            if source == "greedy":
                targets = label_sequences(labels)
                read = logits.unflatten(1, (targets.shape[1], -1))[:, :, -1].flatten(0, 1)
                loss = cross_entropy(
                    read, targets.flatten(), reduction="sum", ignore_index=IGNORE_LABEL
                )
                self.loss.update(loss, (targets != IGNORE_LABEL).sum())

    def compute(self) -> dict[str, Tensor]:
        """Return the error of each source of locations, and the loss."""
        return {**self._final_errors(), "loss": self.loss.compute()}

    def notes(self, split: str) -> dict[str, Any]:
        """Return the errors after each glimpse, and whether the last ones are above chance."""
        per_glimpse = {
            source: [None if e != e else e for e in self.errors[source].per_glimpse().tolist()]
            for source in self._updated()
        }
        notes: dict[str, Any] = {f"{split}_error_per_glimpse": per_glimpse}
        if self.has_chance_level:
            level = chance_level(self.label_counts.compute(), self.class_names)
            final = {f"{split}/{name}": float(v) for name, v in self._final_errors().items()}
            notes |= level.report(final, errors=True)
        return notes

    def reset(self) -> None:
        """Reset all metrics."""
        super().reset()
        self.num_images = 0

    def _updated(self) -> list[str]:
        """Return the sources of locations that any process evaluated."""
        names = all_gather_union(name for name in SOURCES if self.errors[name].update_called)
        return [name for name in SOURCES if name in names]

    def _final_errors(self) -> dict[str, Tensor]:
        return {self.error_names[name]: self.errors[name].compute() for name in self._updated()}


@torch.no_grad()  # a decorated function, since a generator would leak the setting to its caller
def _logits(
    model: RecurrentAttentionModel, inputs: Tensor, **options: Any
) -> Float[Tensor, "b t k"]:
    return model.rollout(inputs, **options).logits[:, 0]


def _sampled_logits(
    model: RecurrentAttentionModel, inputs: Tensor, uniforms: Float[Tensor, "b n"]
) -> Float[Tensor, "b t k"]:
    """Return the logits of a rollout at locations sampled from the policy."""
    start = _start(model, _to_locations(uniforms[:, :2], inputs)[:, 0])
    inside = uniforms[:, 2:].clamp(2.0**-54, 1 - 2.0**-53)  # quantiles of 0 and 1 are infinite
    noise = torch.special.ndtri(inside).unflatten(1, (1, -1, 2)).to(inputs)
    return _logits(model, inputs, init_locations=start, sample=True, noise=noise)


def _to_locations(uniforms: Float[Tensor, "b n"], inputs: Tensor) -> Float[Tensor, "b _ 2"]:
    """Return uniform locations on the image for uniform numbers in [0, 1)."""
    return (2 * uniforms - 1).unflatten(1, (-1, 2)).to(inputs)


def _start(
    model: RecurrentAttentionModel, locations: Float[Tensor, "b 2"]
) -> Float[Tensor, "b 2"] | None:
    """Return initial locations; None for a model that chooses them."""
    return locations if model.random_start else None
