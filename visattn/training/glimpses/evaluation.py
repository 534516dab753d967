"""Evaluation of glimpse models: error rates after each glimpse, and known centers of objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torchmetrics import Metric

from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.data.loading import per_sample_uniforms
from visattn.functional.reinforce import gaussian_log_prob
from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.pipelines.scanpath import raster_scanpaths
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.glimpses.losses import label_per_glimpse, label_sequences, total_cross_entropy
from visattn.training.metrics import ClassCounts, Evaluation, WeightedMean, chance_level
from visattn.training.reduce import all_gather_union


def digit_scanpaths(
    model: RecurrentAttentionModel, batch: DigitSequenceBatch
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths over the centers of the digits on each canvas, from left to right.

    Each digit, and an `end_class`, gets equally many glimpses; after the last digit the path stays.
    """
    num_digits = batch.centers.shape[1] + (model.end_class is not None)
    step = max(1, model.num_glimpses // num_digits)
    digits = torch.arange(model.num_glimpses, device=batch.centers.device) // step
    digits = digits.minimum(batch.num_digits.unsqueeze(1) - 1)
    return batch.centers.gather(1, digits.unsqueeze(-1).expand(-1, -1, 2))


def supervised_rollout(
    model: RecurrentAttentionModel,
    images: Float[Tensor, "b c y x"],
    batch: object,
    noise: Float[Tensor, "b m t 2"],
) -> tuple[GlimpseRollout, Float[Tensor, "b t 2"]]:
    """Return rollouts whose glimpses lie around the centers of the objects, and these centers.

    The core gets no gradient from the policy, since the locations of objects would outweigh what
    it learns about their classes. The noise of the locations is in units of the standard deviation
    of the policy.

    Raises:
        TypeError: If the batch does not know the centers of the objects.
    """
    if not isinstance(batch, DigitSequenceBatch):
        raise TypeError(
            "supervised_location_epochs needs data that know the centers of the objects, such as "
            f"SequenceData; got a batch of type {type(batch).__name__}"
        )
    path = digit_scanpaths(model, batch).to(images)
    samples = path.unsqueeze(1) + model.policy.std.detach() * noise
    return model.rollout(images, num_rollouts=noise.shape[1], samples=samples), path


def supervised_policy_loss(
    rollout: GlimpseRollout, locations: Float[Tensor, "b t 2"], policy_std: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the negative log-density of known locations under the policy, in nats per rollout.

    The last locations belong to the actions. The standard deviation is a constant here.
    """
    num_actions = rollout.policy_means.shape[2]
    targets = locations[:, None, locations.shape[1] - num_actions :]
    log_probs = gaussian_log_prob(
        targets.expand_as(rollout.policy_means), rollout.policy_means, policy_std.detach()
    )
    return -log_probs.sum(-1).mean()


class GlimpseErrors(Metric):
    """The error rate after each glimpse, and the fraction of images with any wrong label.

    After a glimpse the label counts that it is to read; at the end each label after the last of its
    glimpses.

    Example:
        >>> errors = GlimpseErrors(2)
        >>> errors.update(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]]), torch.tensor([1]))
        >>> errors.compute(), errors.per_glimpse()
        (tensor(0.), tensor([1., 0.]))
    """

    full_state_update = False
    wrong: Tensor
    count: Tensor
    wrong_images: Tensor
    images: Tensor

    def __init__(self, num_glimpses: int) -> None:
        super().__init__()
        for name in ("wrong", "count", "wrong_images", "images"):
            shape = () if "images" in name else (num_glimpses,)
            zeros = torch.zeros(shape, dtype=torch.int64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "n t k"], labels: Int[Tensor, "n ..."]) -> None:
        """Add logits or probabilities after each glimpse, and the true classes."""
        chosen, targets = scores.argmax(-1), label_per_glimpse(labels, scores.shape[1])
        wrong = (chosen != targets) & (targets != IGNORE_LABEL)
        step = scores.shape[1] // label_sequences(labels).shape[1]
        self.wrong += wrong.sum(0)
        self.count += (targets != IGNORE_LABEL).sum(0)
        self.wrong_images += wrong[:, step - 1 :: step].any(1).sum()
        self.images += len(labels)

    def compute(self) -> Float[Tensor, ""]:
        """Return the fraction of images with a wrong label; NaN before the first update."""
        return self.wrong_images / self.images

    def per_glimpse(self) -> Float[Tensor, " t"]:
        """Return the error rate after each glimpse, over all processes; NaN without a label."""
        with self.sync_context():
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

    Example:
        >>> GlimpseEvaluator(num_samples=10).location_sources()
        ('greedy', 'random', 'raster', 'sampled', 'averaged')
    """

    num_starts: int = 1
    num_samples: int = 0
    seed: int = 0

    def location_sources(self, *, centered: bool = False) -> tuple[str, ...]:
        """Return the sources of locations; `centered` needs known centers of the objects."""
        sampled = ("sampled", "averaged") if self.num_samples else ()
        return ("greedy", "random", "raster", *(["centered"] if centered else []), *sampled)

    def error_name(self, source: str, num_glimpses: int = 0) -> str:
        """Return the metric name of the error with a source of locations.

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
        centers: Float[Tensor, "b 2"] | Float[Tensor, "b t 2"] | None = None,
    ) -> Iterator[tuple[str, Float[Tensor, "b t k"]]]:
        """Yield each source of locations with the logits after each glimpse.

        `indices` are those of the images in the whole split; `centers`, x and y in [-1, 1], the
        first location of the greedy policy, or all locations, of the source `centered`, which is
        left out without them.
        """
        inputs = model.normalize(images)
        num_glimpses = model.num_glimpses
        num_starts = self.num_starts if model.random_start else 1
        # Numbers of an image, two each: the starts of the greedy policy; the random locations; then
        # for each sampled rollout its start and the noise of its t locations.
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
            # The center of a single object is where the greedy policy starts; those of several are
            # the whole path.
            name = "init_locations" if centers.ndim == 2 else "locations"
            yield "centered", _logits(model, inputs, **{name: centers.to(inputs)})
        if self.num_samples:
            logits = torch.stack([_sampled_logits(model, inputs, own) for own in uniforms[2:]])
            yield "sampled", logits[0]
            yield "averaged", logits.softmax(-1).mean(0)


class GlimpseEvaluation(Evaluation):
    """Errors of a split for each source of locations, after each glimpse and at the end.

    There is an evaluator for each of `fit`, `validate` and `test`.
    """

    def __init__(
        self, model: RecurrentAttentionModel, evaluators: Mapping[str, GlimpseEvaluator]
    ) -> None:
        super().__init__()
        self.num_glimpses = model.num_glimpses
        self.class_names = model.class_names
        self.has_chance_level = model.num_labels == 1
        self.evaluator = fit = evaluators["fit"]
        sources = evaluators["test"].location_sources(centered=True)
        self.errors = nn.ModuleDict({name: GlimpseErrors(model.num_glimpses) for name in sources})
        self.loss = WeightedMean()
        self.label_counts = ClassCounts(len(model.class_names))
        self.num_images = 0
        self.names = ("loss", *map(fit.error_name, fit.location_sources()))

    def next_indices(self, count: int, *, rank: int, world_size: int) -> range:
        """Return the indices of the next images: of w processes, process r has r, r + w, ..."""
        first = self.num_images * world_size + rank
        self.num_images += count
        return range(first, first + count * world_size, world_size)

    def update(
        self,
        model: RecurrentAttentionModel,
        images: UInt8[Tensor, "b _ y x"],
        labels: Int[Tensor, "b ..."],
        indices: Sequence[int],
        centers: Float[Tensor, "b 2"] | Float[Tensor, "b t 2"] | None,
    ) -> None:
        """Evaluate images; see `GlimpseEvaluator.evaluate`."""
        if self.has_chance_level:
            self.label_counts.update(labels.flatten())
        for source, logits in self.evaluator.evaluate(model, images, indices, centers):
            self._error(source).update(logits, labels)
            if source == "greedy":
                self.loss.update(*total_cross_entropy(logits, labels))

    def compute(self) -> dict[str, Tensor]:
        """Return the error of each source of locations, and the loss."""
        return {**self._final_errors(), "loss": self.loss.compute()}

    def notes(self, split: str) -> dict[str, Any]:
        """Return the errors after each glimpse, and whether the last ones are above chance."""
        per_glimpse = {
            source: [None if e != e else e for e in self._error(source).per_glimpse().tolist()]
            for source in self._sources()
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

    def _sources(self) -> list[str]:
        """Return the sources of locations that any process evaluated."""
        sources = self.evaluator.location_sources(centered=True)
        names = all_gather_union(name for name in sources if self._error(name).update_called)
        return [name for name in sources if name in names]

    def _final_errors(self) -> dict[str, Tensor]:
        return {
            self.evaluator.error_name(name, self.num_glimpses): self._error(name).compute()
            for name in self._sources()
        }

    def _error(self, source: str) -> GlimpseErrors:
        return cast("GlimpseErrors", self.errors[source])


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
    return locations if model.random_start else None
