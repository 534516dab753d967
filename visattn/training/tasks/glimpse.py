"""Training of glimpse models with REINFORCE."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from visattn.data.classification.datasets import LabeledBatch
from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.functional.reinforce import update_moving_average
from visattn.models.ram.glimpse_model import GlimpseModel
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.callbacks.monitor import monitor_with_mode
from visattn.training.data_module import InputSpec
from visattn.training.distributed.reduce import all_reduce_mean
from visattn.training.distributed.rng import step_generator
from visattn.training.metrics.chance_level import ClassCounts, chance_level
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import (
    OptimizerFactory,
    OptimizerGroup,
    Schedule,
    cosine,
    trapezoid,
)
from visattn.training.task import Task
from visattn.training.tasks.glimpse_diagnostics import gradient_norms, policy_diagnostics
from visattn.training.tasks.glimpse_eval import (
    ErrorPerGlimpse,
    GlimpseEvaluator,
    SequenceError,
    batch_centers,
    knows_centers,
)
from visattn.training.tasks.glimpse_losses import (
    GlimpseLosses,
    GlimpseLossOptions,
    ValueBaseline,
    check_num_labels,
    compute_glimpse_losses,
    label_targets,
    total_cross_entropy,
)
from visattn.training.tasks.glimpse_rewards import RewardType
from visattn.training.tasks.glimpse_supervision import supervised_policy_loss, supervised_rollout

Baseline = Literal["none", "moving_average", "learned", "informed", "leave_one_out"]
GlimpseBatch = LabeledBatch | DigitSequenceBatch
_ADAM = partial(Adam, lr=1e-3, fused=True)


class GlimpseTask(Task):
    """Train a glimpse model: classification by cross-entropy, locations by REINFORCE.

    Each image has one or more rollouts with locations sampled from the policy. The classification
    loss trains the glimpse network, the recurrent core and the classifier; the policy loss trains
    the policy, and the core too if `backprop_policy_to_core`. Validation and test use the means of
    the policy (greedy locations), with the same initial locations each time, and compare them with
    controls: random locations, a fixed raster and, where the data know the centers of the objects,
    the policy started there or, for several labels, all glimpses there (`centered`).

    Images may have several labels, which a model such as `DRAM` reads in order. The error is then
    that of the whole sequence, and an action is rewarded for all labels that it leads to, up to the
    first error. A model with an `end_class` learns to end sequences of different lengths.

    Args:
        model: The model; it gets the names of its classes from the data.
        data_info: Values that the data module provides: `class_names` are the names of the classes,
            `max_length` is the largest number of labels per image, by default 1.
        num_rollouts: Rollouts per training image.
        baseline: Baseline of the rewards: none (`none`), a moving average (`moving_average`), a
            value predicted from the hidden state before the action (`learned`), one predicted also
            from the probability of the true class at that time (`informed`), or the mean reward of
            the other rollouts of the image (`leave_one_out`).
        reward: 1 for a correct prediction (`correct`), its `log_probability`, or the `gain` in
            probability of the true class since before the action.
        normalize_advantages: Divide the advantages of a batch by their standard deviation.
        backprop_policy_to_core: Propagate the gradient of the policy loss into the core.
        policy_loss_weight: Weight of the policy loss. With an optimizer like Adam it only matters
            for parameters that other losses train too, as with `backprop_policy_to_core`.
        aux_loss_weight: Weight of the mean classification loss over all glimpses, beside that of
            the last glimpse of each label.
        label_smoothing: Label smoothing of the cross-entropy.
        entropy_weight: Weight of the policy's entropy; it has an effect if the model learns its
            standard deviation.
        final_std: Standard deviation of the policy at the end of the run, reached linearly in the
            logarithm from that of the model; by default it does not change.
        random_location_epochs: First epochs, in which each image has one rollout at random
            locations and the policy is not trained.
        supervised_location_epochs: First epochs, in which the glimpses lie around the centers of
            the objects and the policy learns these by maximum likelihood, without REINFORCE; the
            data must know the centers, as `DigitSequenceDataModule` does.
        optimizer: The optimizer; by default Adam with a learning rate of 1e-3.
        policy_lr_mult: Learning rate of the policy, as a multiple of the optimizer's.
        baseline_lr_mult: The same for a learned baseline.
        schedule: Decay of the learning rate to 0: `cosine` or `linear`.
        warmup_steps: Steps of linear warmup.
        num_eval_starts: Initial locations per image in `validate` and `test`.
        num_eval_samples: Sampled rollouts in `test`, whose probabilities are averaged; 0 disables
            them.
        monitor: The validation metric that selects the best checkpoint.

    Raises:
        ValueError: If an option is out of range, `leave_one_out` has a single rollout, or the model
            reads another number of labels than the data have.
    """

    model: GlimpseModel
    average_reward: Tensor
    training_forward = "rollout"

    def __init__(
        self,
        model: Callable[[list[str]], GlimpseModel],
        data_info: dict[str, Any],
        *,
        num_rollouts: int = 1,
        baseline: Baseline = "learned",
        reward: RewardType = "correct",
        normalize_advantages: bool = False,
        backprop_policy_to_core: bool = False,
        policy_loss_weight: float = 1.0,
        aux_loss_weight: float = 0.0,
        label_smoothing: float = 0.0,
        entropy_weight: float = 0.0,
        final_std: float | None = None,
        random_location_epochs: int = 0,
        supervised_location_epochs: int = 0,
        optimizer: OptimizerFactory | None = None,
        policy_lr_mult: float = 1.0,
        baseline_lr_mult: float = 1.0,
        schedule: Literal["cosine", "linear"] = "cosine",
        warmup_steps: int = 0,
        num_eval_starts: int = 5,
        num_eval_samples: int = 10,
        monitor: str = "val/error",
    ) -> None:
        super().__init__(model(data_info["class_names"]))
        check_num_labels(self.model, data_info.get("max_length", 1))
        self.num_rollouts, self.baseline = num_rollouts, baseline
        self.loss_options = GlimpseLossOptions(
            leave_one_out_baseline=baseline == "leave_one_out",
            reward=reward,
            normalize_advantages=normalize_advantages,
            policy_loss_weight=policy_loss_weight,
            aux_loss_weight=aux_loss_weight,
            label_smoothing=label_smoothing,
            entropy_weight=entropy_weight,
        )
        self.backprop_policy_to_core, self.final_std = backprop_policy_to_core, final_std
        self.random_location_epochs = random_location_epochs
        self.supervised_location_epochs = supervised_location_epochs
        # The policy, or its standard deviation, has no gradient in these epochs.
        self.idle_parameters = random_location_epochs + supervised_location_epochs > 0
        self.optimizer = optimizer or _ADAM
        self.policy_lr_mult, self.baseline_lr_mult = policy_lr_mult, baseline_lr_mult
        self.schedule, self.warmup_steps = schedule, warmup_steps
        _check_options(self)
        chance = 1 / len(self.model.class_names)
        self.value_baseline = (
            ValueBaseline(
                self.model.hidden_size, initial_value=chance, informed=baseline == "informed"
            )
            if baseline in ("learned", "informed")
            else None
        )
        self.register_buffer("average_reward", torch.tensor(chance))
        self.evaluators = {
            "fit": GlimpseEvaluator(),
            "validate": GlimpseEvaluator(num_starts=num_eval_starts),
            "test": GlimpseEvaluator(num_starts=num_eval_starts, num_samples=num_eval_samples),
        }
        self._add_metrics()
        self.monitor = monitor_with_mode(monitor)

    def _add_metrics(self) -> None:
        sources = self.evaluators["test"].location_sources(centered=True)
        num_glimpses = self.model.num_glimpses
        self.errors = nn.ModuleDict({name: ErrorPerGlimpse(num_glimpses) for name in sources})
        self.sequence_errors = nn.ModuleDict({name: SequenceError() for name in sources})
        self.loss, self.label_counts = WeightedMean(), ClassCounts(len(self.model.class_names))
        self.num_evaluated, fit = 0, self.evaluators["fit"]
        names = (fit.error_name(source) for source in fit.location_sources())
        self.val_scores = ("val/loss", *(f"val/{name}" for name in names))

    @property
    def input_spec(self) -> InputSpec:
        """The input of the model."""
        return InputSpec(self.model.img_size, self.model.mean, self.model.std)

    def parameter_groups(self) -> list[OptimizerGroup]:
        """Return the parameters of the core, the policy and the baseline."""
        policy = list(nn.ModuleList(self.model.policy_modules.values()).parameters())
        baseline = [] if self.value_baseline is None else list(self.value_baseline.parameters())
        others = {id(parameter) for parameter in (*policy, *baseline)}
        core = [parameter for parameter in self.parameters() if id(parameter) not in others]
        return [
            OptimizerGroup(core),
            OptimizerGroup(policy, self.policy_lr_mult),
            OptimizerGroup(baseline, self.baseline_lr_mult),
        ]

    def lr_schedule(self) -> Schedule:
        """Return the decay to 0 with its warmup."""
        if self.schedule == "cosine":
            return partial(cosine, warmup_steps=self.warmup_steps)
        linear = partial(trapezoid, decay_start=0.0, final_fraction=0.0)
        return partial(linear, warmup_steps=self.warmup_steps)

    def on_train_batch_start(self, batch: GlimpseBatch, batch_idx: int) -> None:
        """Seed the random numbers of this step, and set the policy's standard deviation."""
        super().on_train_batch_start(batch, batch_idx)
        if self.final_std is not None:
            progress = self.global_step / max(1, int(self.trainer.estimated_stepping_batches))
            first, last = math.log(self.model.policy_std), math.log(self.final_std)
            with torch.no_grad():
                self.model.policy.log_std.fill_(first + min(1.0, progress) * (last - first))

    def training_step(self, batch: GlimpseBatch, batch_idx: int) -> Tensor:
        """Return the sum of the classification, policy and baseline losses."""
        images = self.model.normalize(batch.images)
        if self.current_epoch < self.supervised_location_epochs:
            shape = (len(images), self.num_rollouts, self.model.num_glimpses, 2)
            noise = step_generator(self).randn(*shape).to(images)
            rollout, losses = self.supervised_losses(images, batch, noise)
        else:
            rollout = self._sample_rollout(images)
            losses = self.losses(rollout, label_targets(self.model, batch.labels))
        self._log_training(rollout, losses)
        return losses.total

    def supervised_losses(
        self,
        images: Float[Tensor, "b c y x"],
        batch: GlimpseBatch,
        noise: Float[Tensor, "b m t 2"],
    ) -> tuple[GlimpseRollout, GlimpseLosses]:
        """Return rollouts around the centers of the objects, and losses that teach these."""
        rollout, path = supervised_rollout(self.model, images, batch, noise)
        losses = self.losses(rollout, label_targets(self.model, batch.labels))
        policy_loss = supervised_policy_loss(rollout, path, self.model.policy.std)
        return rollout, replace(losses, policy=policy_loss)

    def _sample_rollout(self, images: Float[Tensor, "b c y x"]) -> GlimpseRollout:
        """Return rollouts at locations sampled from the policy, or at random locations."""
        generator, num_glimpses = step_generator(self), self.model.num_glimpses
        count = len(images)
        if self.current_epoch < self.random_location_epochs:
            locations = 2 * generator.rand(count, num_glimpses, 2).to(images) - 1
            return self.model.rollout(images, locations=locations)
        noise = generator.randn(count, self.num_rollouts, num_glimpses, 2).to(images)
        starts = None
        if self.model.init_location == "random":
            starts = 2 * generator.rand(count, self.num_rollouts, 2).to(images) - 1
        return self.model.rollout(
            images,
            num_rollouts=self.num_rollouts,
            backprop_policy_to_core=self.backprop_policy_to_core,
            init_locations=starts,
            noise=noise,
        )

    def losses(self, rollout: GlimpseRollout, labels: Int[Tensor, "b ..."]) -> GlimpseLosses:
        """Return the losses of rollouts, and update the moving average of the reward."""
        moving_average = self.baseline == "moving_average"
        losses = compute_glimpse_losses(
            rollout,
            labels,
            self.loss_options,
            policy_std=self.model.policy.std,
            baseline=self.average_reward if moving_average else self.value_baseline,
        )
        if moving_average and losses.rewards.numel():
            reward = all_reduce_mean(losses.rewards.mean())
            self.average_reward.copy_(update_moving_average(self.average_reward, reward))
        return losses

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the gradient norm of each part of the model."""
        if self._logs_now:
            modules = {
                "glimpse_net": self.model.glimpse_net,
                "rnn": self.model.rnn,
                "classifier": self.model.classifier,
                **self.model.policy_modules,
                "value_baseline": self.value_baseline,
            }
            for name, norm in gradient_norms(modules).items():
                self.log(f"grad_norm/{name}", norm)

    def validation_step(self, batch: GlimpseBatch, batch_idx: int) -> None:
        """Update the errors for each source of locations."""
        self._update_metrics(batch)

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log the errors on the validation images."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the errors on the test images."""
        self._log_metrics("test")

    @property
    def _logs_now(self) -> bool:
        """Whether the diagnostics of this step are logged."""
        return not (self.global_step + 1) % max(1, self.trainer.log_every_n_steps)  # type: ignore[attr-defined]

    def _log_training(self, rollout: GlimpseRollout, losses: GlimpseLosses) -> None:
        if not self._logs_now:
            return
        size = len(rollout.locations)
        self.log("train/loss", losses.classification.detach(), prog_bar=True, batch_size=size)
        diagnostics = policy_diagnostics(rollout, losses, self.model.policy.std)
        diagnostics["baseline_loss"] = losses.baseline.detach()
        for name, value in diagnostics.items():
            self.log(f"policy/{name}", value.detach(), prog_bar=name == "reward", batch_size=size)

    @property
    def _evaluator(self) -> GlimpseEvaluator:
        return self.evaluators[str(self.trainer.state.fn.value)]  # type: ignore[union-attr]

    def _update_metrics(self, batch: GlimpseBatch) -> None:
        """Update the metrics; of w processes, process r has images r, r + w, ... of all."""
        world_size, count = self.trainer.world_size, len(batch.labels)
        first = self.num_evaluated * world_size + self.global_rank
        indices = range(first, self.num_evaluated * world_size + count * world_size, world_size)
        self.num_evaluated += count
        labels = label_targets(self.model, batch.labels)
        if self.model.num_labels == 1:
            self.label_counts.update(labels.flatten())
        centers = batch_centers(self.trainer, self.model, batch, indices)
        results = self._evaluator.evaluate(self.model, batch.images, indices, centers)
        for source, logits in results:
            self.errors[source].update(logits, labels)  # type: ignore[operator]
            self.sequence_errors[source].update(logits, labels)  # type: ignore[operator]
            if source == "greedy":
                loss, count = total_cross_entropy(logits, labels)
                self.loss.update(loss, count)

    def _log_metrics(self, split: str) -> None:
        """Log the error of each source of locations, and store those after each glimpse."""
        evaluator, self.num_evaluated = self._evaluator, 0
        per_glimpse: dict[str, list[float | None]] = {}
        final: dict[str, float] = {}
        centered = knows_centers(self.trainer)
        for source in evaluator.location_sources(centered=centered):
            errors = _compute_and_reset(self.errors[source]).tolist()
            per_glimpse[source] = [None if math.isnan(error) else error for error in errors]
            error = _compute_and_reset(self.sequence_errors[source])
            key = f"{split}/{evaluator.error_name(source, self.model.num_glimpses)}"
            self.log(key, error, prog_bar=source == "greedy")
            final[key] = float(error)
        self.log(f"{split}/loss", _compute_and_reset(self.loss))
        if self.trainer.state.fn != "fit":
            self.notes[f"{split}_error_per_glimpse"] = per_glimpse
            if self.model.num_labels == 1:
                level = chance_level(self.label_counts.compute(), self.model.class_names)
                self.notes |= level.report(final, errors=True)
        self.label_counts.reset()


def _compute_and_reset(metric: Any) -> Tensor:
    value = metric.compute()
    metric.reset()
    return value


def _check_options(task: GlimpseTask) -> None:
    """Raise a ValueError if an option of a task is out of range."""
    nonnegative = {
        "policy_loss_weight": task.loss_options.policy_loss_weight,
        "aux_loss_weight": task.loss_options.aux_loss_weight,
        "entropy_weight": task.loss_options.entropy_weight,
        "policy_lr_mult": task.policy_lr_mult,
        "baseline_lr_mult": task.baseline_lr_mult,
        "random_location_epochs": task.random_location_epochs,
        "supervised_location_epochs": task.supervised_location_epochs,
        "warmup_steps": task.warmup_steps,
    }
    negative = {name: value for name, value in nonnegative.items() if not value >= 0}
    if negative:
        raise ValueError(f"{', '.join(negative)} must be at least 0, got {negative}")
    if not 0 <= (smoothing := task.loss_options.label_smoothing) < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {smoothing}")
    if task.final_std is not None and not task.final_std > 0:
        raise ValueError(f"final_std must be above 0, got {task.final_std}")
    if task.num_rollouts < 1:
        raise ValueError(f"num_rollouts must be at least 1, got {task.num_rollouts}")
    if task.num_rollouts < 2 and task.baseline == "leave_one_out":
        raise ValueError(
            "the leave_one_out baseline needs at least 2 rollouts per image: set num_rollouts to 2 "
            f"or more, or choose another baseline; got num_rollouts={task.num_rollouts}"
        )
