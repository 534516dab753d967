"""Which numbers a glimpse model can be trained with."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam, Optimizer

from visattn.data.classification.datasets import LabeledBatch
from visattn.functional.reinforce import Reward
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.base import Task
from visattn.training.callbacks.monitor import monitor_of
from visattn.training.distributed.reduce import mean_of_all
from visattn.training.distributed.sample_rng import step_draws
from visattn.training.metrics.chance_level import ClassCounts, chance_level
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import cosine, trapezoid, with_schedule
from visattn.training.tasks.glimpse_diagnostics import gradient_norms, policy_figures
from visattn.training.tasks.glimpse_eval import ErrorPerGlimpse, GlimpseEvaluator, known_centers
from visattn.training.tasks.glimpse_losses import GlimpseLosses, ValueBaseline, losses_of_looks

_AT_LEAST_0 = (
    "policy_weight",
    "every_glimpse",
    "entropy",
    "policy_rate",
    "baseline_rate",
    "random_epochs",
    "warm",
)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse numbers that make no sense.

    Args:
        options: Those of a `GlimpseTask`, by name; what is missing is not looked at.

    Raises:
        ValueError: If one makes no sense, or rollouts are to be compared and there is one.

    Example:
        >>> check_options({"entropy": 0.0, "rollouts": 2, "baseline": "leave_one_out"})
    """
    low = {name: options[name] for name in _AT_LEAST_0 if not options.get(name, 0) >= 0}
    if low:
        raise ValueError(f"{', '.join(low)} must be at least 0, got {low}")
    smoothing, last = options.get("smoothing", 0.0), options.get("last_spread")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
    if last is not None and not last > 0:
        raise ValueError(f"last_spread must be above 0, got {last}")
    rollouts = options.get("rollouts", 1)
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    if rollouts < 2 and options.get("baseline") == "leave_one_out":
        raise ValueError(
            "leave_one_out compares the rollouts of an image: say rollouts of 2 or more, or "
            f"another baseline; got rollouts={rollouts}"
        )


Baseline = Literal["none", "average", "learned", "informed", "leave_one_out"]
Schedule = Literal["cosine", "line"]
_ADAM = partial(Adam, lr=1e-3, fused=True)


class GlimpseTask(Task):
    """Train a glimpse model: what it sees by the right answers, where it looks by REINFORCE.

    Each image is looked at several times, with places drawn from the policy. The answer's loss
    trains the glimpse network, the core and the classifier; the policy's loss trains the policy,
    and the core too only if `reaching`. Validation and test look where the policy means to, once,
    from starts that are the same each time, and set beside that what paths give that nobody
    learned: random places, and a fixed raster; where the data know where a thing lies, also
    what the policy gives that starts right there (`aimed`).

    Args:
        model: The model; it gets the names of its classes from the data.
        data_info: What the data tells of itself; `classes` are the names.
        rollouts: How often each training image is looked at.
        baseline: What an action's reward is compared with: nothing (`none`), a moving `average`, a
            reading of what was remembered before it (`learned`), one that knows too how probable
            the true class then was (`informed`), or the other rollouts of the same image
            (`leave_one_out`).
        reward: 1 for a right answer (`correct`), its `log_probability`, or the `gain` in
            probability since before the action.
        normalize: Divide the advantages of a batch by their standard deviation.
        reaching: Let the policy's gradient reach what the core remembers.
        policy_weight: Weight of the policy's loss; to an optimizer like Adam it matters only to
            what other losses train too, where the policy's is `reaching`.
        every_glimpse: Weight of the answers after each glimpse, beside the last one's.
        smoothing: Share of label smoothing.
        entropy: Weight of the policy's entropy; works where the model learns its spread.
        last_spread: The policy's spread at the end of the run, reached in a line of its logarithm
            from the model's; the model's all the time if left out.
        random_epochs: Epochs in which the eye goes to random places, once for each image, and the
            policy rests.
        optimizer: The optimizer; by default Adam with a rate of 1e-3.
        policy_rate: Learning rate of the policy, as a multiple of the optimizer's.
        baseline_rate: The same for a learned baseline.
        schedule: How the learning rate falls to nothing: as a `cosine`, or in a `line`.
        warm: Steps in which it rises before.
        starts: From how many starts `validate` and `test` look at each image.
        samples: Rollouts that the test draws from the policy, to average their probabilities; 0
            leaves them out.
        best_by: The validation score by which the best checkpoint is chosen.

    Raises:
        ValueError: If a number makes no sense, or rollouts are to be compared and there is one.
    """

    model: RecurrentAttentionModel

    def __init__(
        self,
        model: Callable[[list[str]], RecurrentAttentionModel],
        data_info: dict[str, Any],
        *,
        rollouts: int = 1,
        baseline: Baseline = "learned",
        reward: Reward = "correct",
        normalize: bool = False,
        reaching: bool = False,
        policy_weight: float = 1.0,
        every_glimpse: float = 0.0,
        smoothing: float = 0.0,
        entropy: float = 0.0,
        last_spread: float | None = None,
        random_epochs: int = 0,
        optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
        policy_rate: float = 1.0,
        baseline_rate: float = 1.0,
        schedule: Schedule = "cosine",
        warm: int = 0,
        starts: int = 5,
        samples: int = 10,
        best_by: str = "val/error",
    ) -> None:
        super().__init__(model(data_info["classes"]))
        self.rollouts, self.normalize, self.reaching = rollouts, normalize, reaching
        self.policy_weight = policy_weight
        self.baseline: Baseline = baseline
        self.reward: Reward = reward
        self.every_glimpse, self.smoothing, self.entropy = every_glimpse, smoothing, entropy
        self.last_spread, self.random_epochs = last_spread, random_epochs
        self.idle_parameters = random_epochs > 0  # the policy rests
        self.optimizer = optimizer or _ADAM
        self.policy_rate, self.baseline_rate, self.warm = policy_rate, baseline_rate, warm
        self.schedule: Schedule = schedule
        check_options(vars(self))
        chance = 1 / len(self.model.classes)
        self.critic = (
            ValueBaseline(self.model.width, value=chance, informed=baseline == "informed")
            if baseline in ("learned", "informed")
            else None
        )
        self.register_buffer("average", torch.tensor(chance))
        self.trials = {
            "fit": GlimpseEvaluator(),
            "validate": GlimpseEvaluator(starts=starts),
            "test": GlimpseEvaluator(starts=starts, samples=samples),
        }
        errors = {
            name: ErrorPerGlimpse(self.model.glimpses)
            for name in self.trials["test"].names(aimed=True)
        }
        self.errors = nn.ModuleDict(errors)
        self.loss, self.labels = WeightedMean(), ClassCounts(len(self.model.classes))
        self.tried = 0
        self.notes: dict[str, Any] = {}
        self.monitor = monitor_of(best_by)
        fitting = self.trials["fit"]
        self.val_scores = ("val/loss", *(f"val/{fitting.score(name)}" for name in fitting.names()))

    average: Tensor

    def configure_optimizers(self) -> Any:
        """Return the optimizer, each part at its own rate, and the schedule."""
        policy = list(self.model.policy.parameters())
        critic = [] if self.critic is None else list(self.critic.parameters())
        apart = {id(parameter) for parameter in (*policy, *critic)}
        seeing = [parameter for parameter in self.parameters() if id(parameter) not in apart]
        rates = ((seeing, 1.0), (policy, self.policy_rate), (critic, self.baseline_rate))
        groups = [
            {"params": learning, "rate": rate}
            for parameters, rate in rates
            if (learning := [one for one in parameters if one.requires_grad])
        ]
        optimizer = self.optimizer(groups)
        total = int(self.trainer.estimated_stepping_batches)
        falling = {"cosine": cosine, "line": partial(trapezoid, hold=0.0, last=0.0)}[self.schedule]
        share = partial(falling, total=total, warm=self.warm)
        return with_schedule(optimizer, share)

    def on_train_batch_start(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Draw as this step does, and narrow the policy as far as it wants it."""
        super().on_train_batch_start(batch, batch_idx)
        if self.last_spread is not None:
            done = self.global_step / max(1, int(self.trainer.estimated_stepping_batches))
            first, last = math.log(self.model.spread), math.log(self.last_spread)
            with torch.no_grad():
                self.model.policy.log_spread.fill_(first + min(1.0, done) * (last - first))

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        looks = self._looks(self.model.normalized(batch.images))
        losses = self.losses(looks, batch.labels)
        self._log_training(looks, losses)
        return losses.total

    def _looks(self, images: Float[Tensor, "b c y x"]) -> GlimpseRollout:
        """Return rollouts to learn from, at places drawn from the policy, or at random ones."""
        draws, steps, count = step_draws(self), self.model.glimpses, len(images)
        if self.current_epoch < self.random_epochs:
            path = 2 * draws.uniforms(count, steps, 2).to(images) - 1
            return self.model.roll_out(images, path=path)
        noise = draws.normals(count, self.rollouts, steps, 2).to(images)
        anywhere = self.model.start == "random"
        return self.model.roll_out(
            images,
            rollouts=self.rollouts,
            reaching=self.reaching,
            start=2 * draws.uniforms(count, self.rollouts, 2).to(images) - 1 if anywhere else None,
            noise=noise,
        )

    def losses(self, looks: GlimpseRollout, labels: Int[Tensor, " b"]) -> GlimpseLosses:
        """Return what is learned from rollouts."""
        losses = losses_of_looks(
            looks,
            labels,
            spread=self.model.policy.spread,
            baseline=self._expectation,
            others=self.baseline == "leave_one_out",
            reward=self.reward,
            normalize=self.normalize,
            policy_weight=self.policy_weight,
            every_glimpse=self.every_glimpse,
            smoothing=self.smoothing,
            entropy=self.entropy,
        )
        if self.baseline == "average" and losses.rewards.numel():
            self.average.lerp_(mean_of_all(losses.rewards.mean()), 0.1)
        return losses

    @property
    def _expectation(self) -> ValueBaseline | Tensor | None:
        """What reward is expected, before the rollouts of an image are compared."""
        return self.average if self.baseline == "average" else self.critic

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log how long the gradient of each part is."""
        if self._tells:
            parts = {
                "glimpse_net": self.model.glimpse_net,
                "memory": self.model.memory,
                "classifier": self.model.classifier,
                "policy": self.model.policy,
                "critic": self.critic,
            }
            for name, length in gradient_norms(parts).items():
                self.log(f"gradient/{name}", length)

    def validation_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Look at a batch in every way."""
        self._try(batch)

    def test_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Look at a batch in every way."""
        self._try(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the errors on the validation images."""
        self._tell("val")

    def on_test_epoch_end(self) -> None:
        """Log the errors on the test images."""
        self._tell("test")

    @property
    def _tells(self) -> bool:
        """Whether this step's diagnostics are logged."""
        return (self.global_step + 1) % max(1, self.trainer.log_every_n_steps) == 0  # type: ignore[attr-defined]

    @property
    def _trials(self) -> GlimpseEvaluator:
        return self.trials[str(self.trainer.state.fn.value)]  # type: ignore[union-attr]

    def _log_training(self, looks: GlimpseRollout, losses: GlimpseLosses) -> None:
        if not self._tells:
            return
        size = len(looks.places)
        self.log("train/loss", losses.answer.detach(), prog_bar=True, batch_size=size)
        told = policy_figures(looks, losses, self.model.policy.spread)
        for name, value in {**told, "baseline_loss": losses.baseline.detach()}.items():
            self.log(f"policy/{name}", value.detach(), prog_bar=name == "reward", batch_size=size)

    def _try(self, batch: LabeledBatch) -> None:
        """Try a batch; of w processes, process r has images r, r + w, ... of all."""
        first, world = self.tried * self.trainer.world_size, self.trainer.world_size
        numbers = range(first + self.global_rank, first + len(batch.labels) * world, world)
        self.tried += len(batch.labels)
        self.labels.update(batch.labels)
        known = known_centers(self.trainer)
        centers = None if known is None else known[list(numbers)]
        for name, scores in self._trials.run(self.model, batch.images, numbers, centers):
            self.errors[name].update(scores, batch.labels)  # type: ignore[operator]
            if name == "mean":
                loss = cross_entropy(scores[:, -1], batch.labels, reduction="sum")
                self.loss.update(loss, len(scores))

    def _tell(self, split: str) -> None:
        """Log the errors after the last glimpse, and note those after each."""
        trials, after, last, self.tried = self._trials, {}, {}, 0
        for name in trials.names(aimed=known_centers(self.trainer) is not None):
            errors = self.errors[name].compute()  # type: ignore[operator]
            self.errors[name].reset()  # type: ignore[operator]
            said = f"{split}/{trials.score(name, self.model.glimpses)}"
            self.log(said, errors[-1], prog_bar=name == "mean")
            after[name], last[said] = errors.tolist(), float(errors[-1])
        self.log(f"{split}/loss", self.loss.compute())
        self.loss.reset()
        if self.trainer.state.fn != "fit":
            self.notes[f"{split}_error_after_each_glimpse"] = after
            level = chance_level(self.labels.compute(), self.model.classes)
            self.notes |= level.notes(last, errors=True)
        self.labels.reset()
