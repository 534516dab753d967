"""Training of hard attention: variational bound over sampled positions, with REINFORCE."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.data.captions.batch import CaptionBatch
from visattn.functional.reinforce import (
    categorical_entropy,
    categorical_log_prob,
    entropy_rewards,
    leave_one_out_advantages,
    reinforce_loss,
    rewards_to_go,
)
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.training.captioning.evaluation import encode_images
from visattn.training.captioning.task import CaptioningTask
from visattn.training.reduce import (
    StepGenerator,
    all_reduce,
    ddp_loss_scale,
    step_generator,
)


class HardAttentionLosses(NamedTuple):
    """Losses of rollouts over positions, per caption, with their rewards.

    Their gradient is that of the bound plus the weighted entropy, negated: the sum over the words,
    the mean over rollouts and captions. Its expectation is exact.
    """

    bound: Float[Tensor, ""]
    """Negative variational bound: cross-entropy of the words given the sampled positions."""
    policy: Float[Tensor, ""]
    """REINFORCE loss of the positions; only its gradient is meaningful."""
    entropy: Float[Tensor, ""]
    """Negative weighted entropy of the attention."""
    rewards: Float[Tensor, "r m t"]
    """Reward of each position, without that of the entropy."""

    @property
    def total(self) -> Float[Tensor, ""]:
        """The sum of the losses."""
        return self.bound + self.policy + self.entropy


class HardAttentionTask(CaptioningTask):
    """Train a captioner with hard attention on the variational bound of Show, Attend and Tell.

    Each caption has several rollouts, in which the position of each word is sampled from the
    attention. The words are trained with cross-entropy; the attention is trained with REINFORCE,
    where the reward of a position is the log-probability of its word and all later ones, and the
    baseline is the mean reward of the caption's other rollouts. Validation and test use the
    `places` of the captioner, by default the most probable ones. Hard attention learns slowly from
    random weights: initialize it from a captioner that was trained with soft attention
    (`--init_from`), which has the same parameters.

    Args:
        captioner: The captioner, with `attention: hard`; it gets its vocabulary from the data.
        data_info: Values that the data module provides; `words` is the vocabulary.
        num_rollouts: Rollouts per caption.
        entropy_weight: Weight of the entropy of the attention, per word.
        entropy_until: Fraction of the run after which this weight, decayed linearly, is 0.
        settings: Arguments of `CaptioningTask`. The doubly stochastic penalty and the attention
            supervision loss apply to the probabilities of the positions.

    Raises:
        TypeError: If the captioner has no hard attention.

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.1.
    """

    model: ShowAttendTell  # pyright: ignore[reportIncompatibleVariableOverride] (checked)
    samples_places = True

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        num_rollouts: int = 4,
        entropy_weight: float = 0.03,
        entropy_until: float = 0.6,
        **settings: Any,
    ) -> None:
        super().__init__(captioner, data_info, **settings)
        if self.model.places is None:
            raise TypeError(
                "HardAttentionTask needs a captioner with hard attention: set attention: hard of "
                f"ShowAttendTell, got {type(self.model).__name__}; CaptioningTask trains others"
            )
        self.num_rollouts = num_rollouts
        self.entropy_weight = entropy_weight
        self.entropy_until = entropy_until

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of sampled rollouts, plus the penalties with a weight above 0."""
        features = encode_images(self.model, batch)
        repeated = batch.repeat_captions(self.num_rollouts)
        inputs = repeated.drop_words(self.word_dropout)
        rollouts = self.sample_rollouts(features, inputs, step_generator(self))
        losses = self.losses(rollouts, repeated)
        num_captions = len(batch.lengths)
        count = int(batch.lengths.sum()) if self.reduction == "mean" else num_captions
        # Means over captions; the reduction `mean` converts them to means over words.
        scale = num_captions / count
        self.log("train/loss", losses.bound.detach() * scale, prog_bar=True)
        self.log("policy/reward", losses.rewards.sum() / len(rollouts.rows), prog_bar=True)
        loss = losses.total * scale * ddp_loss_scale(count, features.device)
        # The weights used are 1 at the sampled position and have no gradient.
        attention = rollouts.attention._replace(weights=rollouts.attention.probabilities)
        output = rollouts._replace(attention=attention)
        return loss + self.attention_penalties(output, repeated)

    def sample_rollouts(
        self, features: Float[Tensor, "b c y x"], batch: CaptionBatch, generator: StepGenerator
    ) -> TeacherForcedOutput:
        """Return a rollout of each caption of a batch, in which captions are repeated."""
        return self.model.rollout(
            features,
            batch.captions[:, :-1],
            batch.packing or batch.lengths,
            batch.image_indices,
            self._uniforms(len(features), batch, generator),
        )

    def _uniforms(
        self, num_images: int, batch: CaptionBatch, generator: StepGenerator
    ) -> Float[Tensor, "r t"]:
        """Return a random number per word, independent of the number of processes."""
        device = batch.lengths.device
        count = self.num_rollouts
        captions = torch.tensor(batch.caption_indices, device=device)
        # Each process draws the numbers for all images of all processes and keeps its own, so the
        # shape must be equal in all processes.
        sizes = torch.stack([captions.max() + 1, batch.lengths.max()])
        num_captions, num_words = map(int, all_reduce(sizes, largest=True))
        numbers = generator.rand(num_images, num_captions, count, num_words)
        rollouts = torch.arange(count, device=device).repeat(len(captions) // count)
        return numbers[batch.image_indices, captions, rollouts]

    def losses(self, rollouts: TeacherForcedOutput, batch: CaptionBatch) -> HardAttentionLosses:
        """Return the losses of rollouts, by equations 10 to 12 of the paper."""
        targets = batch.captions[rollouts.rows, rollouts.steps + 1]
        smoothing = self.label_smoothing
        word_losses = cross_entropy(
            rollouts.logits, targets, reduction="none", label_smoothing=smoothing
        )
        # Not the negative `word_losses`, which include label smoothing.
        log_probs = self._pad(categorical_log_prob(rollouts.logits.detach(), targets), rollouts)
        chosen = rollouts.attention.weights.argmax(-1, keepdim=True)
        alpha = cast("Tensor", rollouts.attention.probabilities)
        place_probs = alpha.gather(-1, chosen).squeeze(-1)
        place_log_probs = place_probs.clamp_min(torch.finfo(alpha.dtype).tiny).log()
        entropies = self._pad(categorical_entropy(alpha), rollouts)
        weight = self.entropy_weight * self._remaining()  # the paper's lambda_e
        rewards = rewards_to_go(log_probs)  # those of a position: of its word and all later ones
        # The entropy of later words is part of the reward of a position.
        advantages = leave_one_out_advantages(rewards + entropy_rewards(entropies, weight))
        return HardAttentionLosses(
            bound=self._pad(word_losses, rollouts).sum(-1).mean(),
            policy=reinforce_loss(self._pad(place_log_probs, rollouts), advantages),
            entropy=-weight * entropies.sum(-1).mean(),
            rewards=rewards,
        )

    def _pad(
        self, values: Float[Tensor, " p"], rollouts: TeacherForcedOutput
    ) -> Float[Tensor, "r m t"]:
        """Return packed values by caption, rollout and word, with 0 for padding."""
        rows, steps = rollouts.rows, rollouts.steps
        padded = values.new_zeros(int(rows.max()) + 1, int(steps.max()) + 1)
        padded = padded.index_put((rows, steps), values)
        return padded.unflatten(0, (-1, self.num_rollouts))

    def _remaining(self) -> float:
        """Return the factor of the entropy weight, which decays linearly to 0."""
        progress = self.global_step / max(1, int(self.trainer.estimated_stepping_batches))
        return max(0.0, 1.0 - progress / self.entropy_until)
