"""Training of glimpse models with REINFORCE, and diagnostics of their policy."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Adam

from visattn.data.classification.datasets import LabeledBatch
from visattn.data.classification.digit_sequences import DigitSequenceBatch
from visattn.functional.reinforce import explained_variance, gaussian_log_prob
from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.training.glimpses.evaluation import (
    GlimpseEvaluation,
    digit_scanpaths,
    evaluate_glimpses,
)
from visattn.training.glimpses.losses import (
    GlimpseLosses,
    RewardType,
    ValueBaseline,
    compute_glimpse_losses,
    label_targets,
)
from visattn.training.optim import OptimConfig
from visattn.training.reduce import step_generator
from visattn.training.task import Task

GlimpseBatch = LabeledBatch | DigitSequenceBatch
_OPTIM = OptimConfig(schedule="cosine")


class GlimpseTask(Task):
    """Train a glimpse model: classification by cross-entropy, locations by REINFORCE.

    Each image has one or more rollouts with locations sampled from the policy. The classification
    loss trains the glimpse network, the recurrent core and the classifier; the policy loss trains
    the policy, and the core too if `backprop_policy_to_core`. Validation and test use the means of
    the policy (greedy locations), with the same initial locations each time, and compare them with
    controls: random locations, a fixed raster and, if the data have the centers of the objects, the
    policy started there or, for several labels, all glimpses there (`centered`).

    Images may have several labels, which a model such as `DRAM` reads in order. The error is then
    that of the whole sequence, and an action is rewarded for all labels that it leads to, up to the
    first error. A model with an `end_class` learns to end sequences of different lengths.

    Args:
        model: The model; it gets the names of its classes from the data.
        data_info: Values that the data module provides: `class_names` are the names of the classes,
            `max_length` is the largest number of labels per image, by default 1.
        num_rollouts: Rollouts per training image.
        baseline: Baseline of the rewards, a value predicted from the hidden state before the action
            (`learned`), and also from the probability of the true class at that time (`informed`).
        reward: 1 for a correct prediction (`correct`), or the `gain` in probability of the true
            class since before the action.
        normalize_advantages: Divide the advantages of a batch by their standard deviation.
        backprop_policy_to_core: Propagate the gradient of the policy loss into the core.
        policy_loss_weight: Weight of the policy loss. With an optimizer like Adam it only matters
            for parameters that other losses train too, as with `backprop_policy_to_core`.
        aux_loss_weight: Weight of the mean classification loss over all glimpses, in addition to
            that of the last glimpse of each label.
        final_std: Standard deviation of the policy at the end of the run, reached linearly in the
            logarithm from that of the model; by default it does not change.
        supervised_location_epochs: First epochs, in which glimpses are at the centers of the
            objects plus noise, and the policy learns them by maximum likelihood, without REINFORCE;
            the data must have the centers, as `DigitCanvases` does.
        optim: The optimizer, by default Adam with a learning rate of 1e-3; `lr_mults` for the
            `core`, the `policy` and the `baseline`.
        num_eval_starts: Initial locations per image in `validate` and `test`.
        num_eval_samples: Sampled rollouts in `test`, whose probabilities are averaged; 0 disables
            them.
        monitor: The validation metric that selects the best checkpoint.

    Raises:
        ValueError: If the model reads another number of labels than the data have.
    """

    model: RecurrentAttentionModel
    default_optimizer = staticmethod(partial(Adam, lr=1e-3, fused=True))

    def __init__(
        self,
        model: Callable[[list[str]], RecurrentAttentionModel],
        data_info: dict[str, Any],
        *,
        num_rollouts: int = 1,
        baseline: Literal["learned", "informed"] = "learned",
        reward: RewardType = "correct",
        normalize_advantages: bool = False,
        backprop_policy_to_core: bool = False,
        policy_loss_weight: float = 1.0,
        aux_loss_weight: float = 0.0,
        final_std: float | None = None,
        supervised_location_epochs: int = 0,
        optim: OptimConfig = _OPTIM,
        num_eval_starts: int = 5,
        num_eval_samples: int = 10,
        monitor: str = "val/error",
    ) -> None:
        super().__init__(model(data_info["class_names"]), optim, monitor)
        most, read = data_info.get("max_length", 1), self.model.num_labels
        read -= self.model.end_class is not None
        if read != most:
            raise ValueError(
                f"the data have up to {most} label{'s' * (most > 1)} per image, but the model "
                f"reads {read}: use DRAM with max_objects={most}, or other data"
            )
        self.num_rollouts = num_rollouts
        self.loss_options: dict[str, Any] = {
            "reward": reward,
            "normalize_advantages": normalize_advantages,
            "policy_loss_weight": policy_loss_weight,
            "aux_loss_weight": aux_loss_weight,
        }
        self.backprop_policy_to_core = backprop_policy_to_core
        self.final_std = final_std
        self.supervised_location_epochs = supervised_location_epochs
        # The policy or its standard deviation has no gradient in these epochs.
        self.idle_parameters = supervised_location_epochs > 0
        chance = 1 / len(self.model.class_names)
        self.value_baseline = ValueBaseline(
            self.model.hidden_size, initial_value=chance, informed=baseline == "informed"
        )
        self.evaluated = {
            "fit": {},
            "validate": {"num_starts": num_eval_starts},
            "test": {"num_starts": num_eval_starts, "num_samples": num_eval_samples},
        }
        self.add_evaluations(lambda: GlimpseEvaluation(self.model, num_eval_samples))

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the core, the policy and the baseline."""
        policy = list(nn.ModuleList(self.model.policy_modules.values()).parameters())
        baseline = list(self.value_baseline.parameters())
        others = {id(parameter) for parameter in (*policy, *baseline)}
        core = [parameter for parameter in self.parameters() if id(parameter) not in others]
        return {"core": core, "policy": policy, "baseline": baseline}

    def initialize(self, checkpoint: str | os.PathLike[str]) -> None:
        """Load the weights of the model of another run, except the policy's standard deviation."""
        policy = self.model.policy
        std = policy.log_std.detach().clone()
        super().initialize(checkpoint)
        policy.log_std.copy_(std)

    def on_train_batch_start(self, batch: GlimpseBatch, batch_idx: int) -> None:
        """Seed the random numbers of this step, and set the policy's standard deviation."""
        super().on_train_batch_start(batch, batch_idx)
        if self.final_std is not None:
            progress = self.global_step / max(1, int(self.trainer.estimated_stepping_batches))
            first = math.log(self.model.policy_std)
            last = math.log(self.final_std)
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
        """Return rollouts around the centers of the objects, and supervised losses.

        The policy loss is the negative log-density of the centers, in nats per rollout. The core
        gets no gradient from it, since locations would dominate over classes. The noise is in units
        of the standard deviation of the policy.

        Raises:
            TypeError: If the batch lacks the centers of the objects.
        """
        if not isinstance(batch, DigitSequenceBatch):
            raise TypeError(
                "supervised_location_epochs needs data with the centers of the objects, such "
                f"as SequenceData; got a batch of type {type(batch).__name__}"
            )
        path, std = digit_scanpaths(self.model, batch).to(images), self.model.policy.std.detach()
        samples = path.unsqueeze(1) + std * noise
        rollout = self.model.rollout(images, num_rollouts=noise.shape[1], samples=samples)
        losses = self.losses(rollout, label_targets(self.model, batch.labels))
        means = rollout.policy_means
        centers = path[:, None, path.shape[1] - means.shape[2] :].expand_as(means)
        density = gaussian_log_prob(centers, means, std)
        return rollout, replace(losses, policy=-density.sum(-1).mean())

    def _sample_rollout(self, images: Float[Tensor, "b c y x"]) -> GlimpseRollout:
        """Return rollouts at locations sampled from the policy."""
        generator = step_generator(self)
        num_glimpses = self.model.num_glimpses
        count = len(images)
        noise = generator.randn(count, self.num_rollouts, num_glimpses, 2).to(images)
        starts = None
        if self.model.random_start:
            starts = 2 * generator.rand(count, self.num_rollouts, 2).to(images) - 1
        return self.model.rollout(
            images,
            num_rollouts=self.num_rollouts,
            backprop_policy_to_core=self.backprop_policy_to_core,
            init_locations=starts,
            noise=noise,
        )

    def losses(self, rollout: GlimpseRollout, labels: Int[Tensor, "b ..."]) -> GlimpseLosses:
        """Return the losses of rollouts."""
        std = self.model.policy.std
        return compute_glimpse_losses(
            rollout, labels, self.value_baseline, policy_std=std, **self.loss_options
        )

    def evaluate(self, batch: GlimpseBatch, split: str) -> None:
        """Update the errors of a split for each source of locations."""
        evaluation: GlimpseEvaluation = self.evaluation(split)
        indices = evaluation.next_indices(
            len(batch.labels), rank=self.global_rank, world_size=self.trainer.world_size
        )
        centers = None if self.fitting else self._centers(batch, split, indices)
        options = self.evaluated[str(self.trainer.state.fn.value)]  # type: ignore[union-attr]
        logits = evaluate_glimpses(self.model, batch.images, indices, centers, **options)
        evaluation.update(label_targets(self.model, batch.labels), logits)

    def _centers(self, batch: GlimpseBatch, split: str, indices: range) -> Tensor | None:
        """Return the center of the only object of each image, or of each glimpse's object."""
        if isinstance(batch, DigitSequenceBatch):
            return digit_scanpaths(self.model, batch)
        centers = self.data and self.data.centers("validation" if split == "val" else "test")
        return None if centers is None else centers[list(indices)]

    @torch.no_grad()
    def _log_training(self, rollout: GlimpseRollout, losses: GlimpseLosses) -> None:
        """Log the losses and diagnostics of the policy at the steps that Lightning logs.

        `explained_variance` is the fraction of the variance of the rewards that the baseline
        explains; `mean_std`, the standard deviation of the policy's means between images, is near 0
        if the policy ignores the image.
        """
        if (self.global_step + 1) % max(1, self.trainer.log_every_n_steps):  # type: ignore[attr-defined]
            return
        size = len(rollout.locations)
        self.log("train/loss", losses.classification, prog_bar=True, batch_size=size)
        logged = {"std": self.model.policy.std, "baseline_loss": losses.baseline}
        if losses.rewards.numel():
            explained = explained_variance(losses.expected_rewards, losses.rewards)
            logged |= {
                "reward": losses.rewards.mean(),
                "explained_variance": explained.nan_to_num(0.0),
                "mean_std": rollout.policy_means.mean(1).std(0, correction=0).mean(),
            }
        self.log_dict({f"policy/{k}": v for k, v in logged.items()}, batch_size=size)
