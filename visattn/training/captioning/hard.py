"""Training of hard attention: the variational bound over sampled places, with REINFORCE."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from visattn.data.captions.batch import CaptionBatch
from visattn.functional.reinforce import (
    categorical_entropy,
    categorical_log_prob,
    entropy_rewards,
    leave_one_out_advantages,
    reinforce_loss,
    rewards_to_go,
    update_moving_average,
    value_baseline_loss,
)
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import PlaceRollouts, PlaceSampler, ShowAttendTell
from visattn.training.captioning.evaluation import encode_images
from visattn.training.captioning.task import CaptioningTask
from visattn.training.distributed.reduce import (
    StepGenerator,
    all_reduce_max,
    all_reduce_mean,
    ddp_loss_scale,
    step_generator,
)
from visattn.training.value_baseline import ValueBaseline

PlaceReward = Literal["to_go", "total", "mean"]


class HardAttentionLosses(NamedTuple):
    """Losses of rollouts over places, per caption, with the rewards behind them."""

    bound: Float[Tensor, ""]
    """Negative variational bound: cross-entropy of the words given the sampled places."""
    policy: Float[Tensor, ""]
    """REINFORCE loss of the places; only its gradient has a meaning."""
    entropy: Float[Tensor, ""]
    """Negative weighted entropy of the attention."""
    baseline: Float[Tensor, ""]
    """Squared error of a learned baseline; 0 without one."""
    rewards: Float[Tensor, "r m t"]
    """Reward of each place, without that of the entropy."""
    advantages: Float[Tensor, "r m t"]
    """Reward of each place minus its baseline."""

    @property
    def total(self) -> Float[Tensor, ""]:
        """The sum of the losses."""
        return self.bound + self.policy + self.entropy + self.baseline


def multi_sample_bound(log_probs: Float[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
    """Return the bound log (1/m Σ p(y|s_k)) on log p(y) from m sampled paths, in nats.

    Its expectation rises with m and tends to log p(y).

    Example:
        >>> multi_sample_bound(torch.tensor([0.5, 0.25]).log()).exp()
        tensor(0.3750)

    Source:
        Burda et al. 2016, arXiv:1509.00519, equation 8; with m = 1 the bound of Xu et al. 2015,
        arXiv:1502.03044, equation 10.
    """
    return log_probs.logsumexp(-1) - math.log(log_probs.shape[-1])


@torch.no_grad()
def place_rewards(
    word_log_probs: Float[Tensor, "r m t"],
    lengths: Int[Tensor, " r"],
    reward: PlaceReward = "to_go",
) -> Float[Tensor, "r m t"]:
    """Return the reward of the place chosen before each word.

    The log-probabilities of padding are 0. For the rewards see `HardAttentionTask`.

    Example:
        >>> words = torch.tensor([[[-1.0, -2.0, -4.0]]])
        >>> place_rewards(words, torch.tensor([3]))
        tensor([[[-7., -6., -4.]]])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equation 11, for `total`.
    """
    if reward == "to_go":
        return rewards_to_go(word_log_probs)
    total = word_log_probs.sum(-1, keepdim=True)
    if reward == "mean":
        total = total / lengths[:, None, None]
    inside = torch.arange(word_log_probs.shape[-1], device=lengths.device) < lengths[:, None, None]
    return total * inside


def hard_attention_losses(
    word_losses: Float[Tensor, "r m t"],
    rewards: Float[Tensor, "r m t"],
    place_log_probs: Float[Tensor, "r m t"],
    entropies: Float[Tensor, "r m t"],
    *,
    baseline: Float[Tensor, "..."] | None = None,
    leave_one_out: bool = False,
    reward_weight: float = 1.0,
    entropy_weight: float = 0.0,
) -> HardAttentionLosses:
    """Return the losses whose gradient is that of the bound plus the weighted entropy, negated.

    All values are those of m rollouts of r captions, and 0 for padding. The losses are summed over
    words and averaged over rollouts and captions.

    With a `to_go` or `total` reward, a reward weight of 1 and a baseline that does not depend on
    the place, the expected gradient is exact: for the entropy too, since the entropy of later words
    is part of the reward of a place.

    Args:
        word_losses: Cross-entropy of each word given the sampled places.
        rewards: Reward of each place, such as `place_rewards` returns.
        place_log_probs: Log-probability of each sampled place; 0, without a gradient, for words
            that read the expectation.
        entropies: Entropy of the attention before each word.
        baseline: Expected rewards: a constant or one value per place; the squared error of the
            latter is the baseline loss.
        leave_one_out: Subtract the mean reward of the other rollouts of the caption as well.
        reward_weight: Weight of the rewards (the paper's λ_r).
        entropy_weight: Weight of the entropy (the paper's λ_e).

    Raises:
        ValueError: If `leave_one_out` is set and there is a single rollout per caption.

    Example:
        >>> one = torch.ones(1, 2, 1)
        >>> rewards = torch.tensor([[[-1.0], [-3.0]]])
        >>> hard_attention_losses(one, rewards, -one, one, leave_one_out=True).advantages.flatten()
        tensor([ 2., -2.])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 10 to 12.
    """
    # For the diagnostics, advantages are without the entropy. Where a constant baseline is
    # subtracted, padding has some too; they have no effect, since its log-probability is 0.
    advantages = reward_weight * (rewards if baseline is None else rewards - baseline.detach())
    returns = advantages + entropy_rewards(entropies, entropy_weight)
    if leave_one_out:
        advantages, returns = map(leave_one_out_advantages, (advantages, returns))
    error = rewards.new_zeros(())
    if baseline is not None and baseline.requires_grad:  # padding has no error
        error = rewards.shape[-1] * value_baseline_loss(baseline, rewards)  # summed over words
    return HardAttentionLosses(
        bound=word_losses.sum(-1).mean(),
        policy=reinforce_loss(place_log_probs, returns),
        entropy=-entropy_weight * entropies.sum(-1).mean(),
        baseline=error,
        rewards=rewards,
        advantages=advantages,
    )


PlaceBaseline = Literal["leave_one_out", "learned", "moving_average", "none"]
Coin = Literal["none", "image", "batch"]
Preset = Literal["default", "paper", "authors"]

HARD_ATTENTION_PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "num_rollouts": 4,
        "baseline": "leave_one_out",
        "reward": "to_go",
        "reward_weight": 1.0,
        "entropy_weight": 0.03,
        "entropy_until": 0.6,
        "coin": "none",
    },
    # Section 4.1; the paper does not print its weights.
    "paper": {
        "num_rollouts": 1,
        "baseline": "moving_average",
        "reward": "total",
        "reward_weight": 1.0,
        "entropy_weight": 0.01,
        "entropy_until": None,
        "coin": "image",
    },
    # arctic-captions, capgen.py: its likelihood is a mean over the batch, the other terms are not,
    # so that the weights per word equal these for 64 captions of 12 words.
    "authors": {
        "num_rollouts": 1,
        "baseline": "moving_average",
        "reward": "mean",
        "reward_weight": 0.53,
        "entropy_weight": 0.128,
        "entropy_until": None,
        "coin": "batch",
    },
}
"""Options of `HardAttentionTask`, by the name of the preset."""


class HardAttentionTask(CaptioningTask):
    """Train a captioner with hard attention on the variational bound of Show, Attend and Tell.

    Each caption has one or more rollouts, in which the place of each word is sampled from the
    attention. The words are trained with cross-entropy; the attention is trained with REINFORCE,
    where the reward of a place is the log-probability of the words after it. Validation and test
    use the `places` of the captioner, the most probable ones by default. From random weights hard
    attention learns slowly: initialize it from a captioner that was trained with soft attention
    (`--init_from`), which has the same parameters.

    Arguments that are None have the value of the preset.

    Args:
        captioner: The captioner, with `attention: hard`; it gets its vocabulary from the data.
        data_info: Values that the data module provides; `words` is the vocabulary.
        preset: `default`; the `paper`; or `authors`, the estimator of the authors' code.
        num_rollouts: Rollouts per caption.
        baseline: Baseline of the rewards: the mean reward of the caption's other rollouts
            (`leave_one_out`), a value predicted from the hidden state before the place (`learned`),
            a `moving_average`, or `none`.
        reward: Reward of a place: the log-probability of its word and all later ones (`to_go`), of
            the whole caption (`total`), or its `mean` over the words.
        reward_weight: Weight of the rewards; the gradient is that of the bound at 1.
        entropy_weight: Weight of the entropy of the attention, per word.
        entropy_until: Fraction of the run at which this weight has fallen linearly to 0; a negative
            number keeps it constant.
        coin: Whether a coin decides that all words of an `image` or of a `batch` read the
            expectation, as soft attention does, instead of a sampled place; `none` for no coin.
        soft_probability: Probability that the coin chooses the expectation.
        soft_until: Fraction of the run at which this probability has fallen linearly to 0; None
            keeps it constant.
        settings: Arguments of `CaptioningTask`; `lr_mults` of `optim` also for a learned
            `baseline`. The doubly stochastic penalty and the attention
            supervision loss apply to the probabilities of the places.

    Raises:
        TypeError: If the captioner has no hard attention.
        ValueError: If an option is out of range, or `leave_one_out` has a single rollout.

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.1.
    """

    model: ShowAttendTell  # pyright: ignore[reportIncompatibleVariableOverride] (checked)
    average_reward: Tensor
    training_forward = ""  # the random places are drawn within a rollout
    samples_places = True

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        preset: Preset = "default",
        num_rollouts: int | None = None,
        baseline: PlaceBaseline | None = None,
        reward: PlaceReward | None = None,
        reward_weight: float | None = None,
        entropy_weight: float | None = None,
        entropy_until: float | None = None,
        coin: Coin | None = None,
        soft_probability: float = 0.5,
        soft_until: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(captioner, data_info, **settings)
        chosen: dict[str, Any] = {
            "num_rollouts": num_rollouts, "baseline": baseline, "reward": reward, "coin": coin,
            "reward_weight": reward_weight, "entropy_weight": entropy_weight,
            "entropy_until": entropy_until,
        }  # fmt: skip
        chosen = {name: value for name, value in chosen.items() if value is not None}
        options = HARD_ATTENTION_PRESETS[preset] | chosen
        self.num_rollouts: int = options["num_rollouts"]
        self.baseline: PlaceBaseline = options["baseline"]
        self.reward: PlaceReward = options["reward"]
        self.reward_weight: float = options["reward_weight"]
        self.entropy_weight: float = options["entropy_weight"]
        self.entropy_until: float | None = options["entropy_until"]
        self.coin: Coin = options["coin"]
        self.soft_probability = soft_probability
        self.soft_until = soft_until
        self._check_options()
        self.value_baseline = (
            ValueBaseline(self.model.hidden_size, initial_value=0.0)
            if self.baseline == "learned"
            else None
        )
        self.register_buffer("average_reward", torch.zeros(()))

    def _check_options(self) -> None:
        if self.model.places is None:
            raise TypeError(
                "HardAttentionTask needs a captioner with hard attention: set attention: hard of "
                f"ShowAttendTell, got {type(self.model).__name__}; CaptioningTask trains others"
            )
        least = 2 if self.baseline == "leave_one_out" else 1
        if self.num_rollouts < least:
            raise ValueError(
                f"num_rollouts must be at least {least} with the baseline {self.baseline}, got "
                f"{self.num_rollouts}"
            )
        if min(self.reward_weight, self.entropy_weight) < 0:
            raise ValueError(
                "reward_weight and entropy_weight must be at least 0, got "
                f"{self.reward_weight} and {self.entropy_weight}"
            )
        if not 0 <= self.soft_probability <= 1:
            raise ValueError(f"soft_probability must be in [0, 1], got {self.soft_probability}")

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of decoder and encoder, and those of a learned baseline."""
        baseline = [] if self.value_baseline is None else list(self.value_baseline.parameters())
        return {**super().parts(), "baseline": baseline}

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the loss of sampled rollouts, plus the penalties with a weight above 0."""
        features = encode_images(self.model, batch)
        repeated = batch.repeat_captions(self.num_rollouts)
        inputs = repeated.drop_words(self.word_dropout)
        rollouts = self.sample_rollouts(features, inputs, step_generator(self))
        losses = self.losses(rollouts, repeated)
        num_captions = len(batch.lengths)
        count = int(batch.lengths.sum()) if self.reduction == "mean" else num_captions
        # The losses are means over captions; with the reduction `mean` they become means over
        # words.
        scale = num_captions / count
        self._log_training(losses, rollouts, scale)
        loss = losses.total * scale * ddp_loss_scale(count, features.device)
        # The weights that were read are 1 at the sampled place and have no gradient.
        attention = rollouts.output.attention._replace(weights=rollouts.probabilities)
        output = rollouts.output._replace(attention=attention)
        return self.weigh_batch(loss + self.attention_penalties(output, repeated), count)

    def sample_rollouts(
        self, features: Float[Tensor, "b c y x"], batch: CaptionBatch, generator: StepGenerator
    ) -> PlaceRollouts:
        """Return a rollout of each caption of a batch, in which captions are repeated."""
        uniforms = self._uniforms(len(features), batch, generator)
        soft = self._toss_coin(len(features), generator)
        return self.model.rollout(
            features,
            batch.captions[:, :-1],
            batch.packing or batch.lengths,
            batch.image_indices,
            PlaceSampler.from_uniforms(
                uniforms, soft=None if soft is None else soft[batch.image_indices]
            ),
        )

    def _uniforms(
        self, num_images: int, batch: CaptionBatch, generator: StepGenerator
    ) -> Float[Tensor, "r t"]:
        """Return a random number for each word, the same ones for any number of processes."""
        device = batch.lengths.device
        count = self.num_rollouts
        captions = torch.tensor(batch.caption_indices, device=device)
        # Each process draws the numbers of all images of all processes and keeps its own, so that
        # the shape must be the same in all of them.
        num_captions = all_reduce_max(int(captions.max()) + 1, device)
        num_words = all_reduce_max(int(batch.lengths.max()), device)
        numbers = generator.rand(num_images, num_captions, count, num_words)
        rollouts = torch.arange(count, device=device).repeat(len(captions) // count)
        return numbers[batch.image_indices, captions, rollouts]

    def losses(self, rollouts: PlaceRollouts, batch: CaptionBatch) -> HardAttentionLosses:
        """Return the losses of rollouts, and update the moving average of the reward."""
        count = self.num_rollouts
        output = rollouts.output
        targets = batch.captions[output.rows, output.steps + 1]
        smoothing = self.label_smoothing
        word_losses = cross_entropy(
            output.logits, targets, reduction="none", label_smoothing=smoothing
        )
        # Not the negative `word_losses`, which include the label smoothing.
        log_probs = rollouts.pad(categorical_log_prob(output.logits.detach(), targets), count)
        rewards = place_rewards(log_probs, batch.lengths[::count], self.reward)
        losses = hard_attention_losses(
            rollouts.pad(word_losses, count),
            rewards,
            rollouts.pad(rollouts.place_log_probs, count),
            rollouts.pad(categorical_entropy(rollouts.probabilities), count),
            baseline=self._expected_rewards(rollouts, batch.lengths),
            leave_one_out=self.baseline == "leave_one_out",
            reward_weight=self.reward_weight,
            entropy_weight=self.entropy_weight * self._falling(self.entropy_until),
        )
        if self.baseline == "moving_average":
            # The mean over places, of which each word has one; rewards of padding are 0.
            num_words = all_reduce_mean(batch.lengths.sum().to(rewards.dtype))
            reward = all_reduce_mean(rewards.sum()) / num_words
            self.average_reward.copy_(update_moving_average(self.average_reward, reward))
        return losses

    def _expected_rewards(
        self, rollouts: PlaceRollouts, lengths: Int[Tensor, " r"]
    ) -> Float[Tensor, "..."] | None:
        """Return the baseline, from what is known before each place; None for none."""
        if self.baseline == "moving_average":
            return self.average_reward
        if self.value_baseline is None:
            return None
        output = rollouts.output
        values = self.value_baseline(rollouts.hidden, rollouts.place_log_probs)
        remaining = {
            "to_go": lengths[output.rows] - output.steps,
            "total": lengths[output.rows],
            "mean": torch.ones_like(output.rows),
        }[self.reward]  # the value is the expected log-probability of a word
        return rollouts.pad(values * remaining, self.num_rollouts)

    def _toss_coin(self, num_images: int, generator: StepGenerator) -> Bool[Tensor, " b"] | None:
        """Return which images read the expectation; None if no coin is tossed."""
        if self.coin == "none":
            return None
        numbers = generator.rand(num_images)
        if self.coin == "batch":
            numbers = numbers[:1].expand(num_images)
        return numbers < self.soft_probability * self._falling(self.soft_until)

    def _falling(self, until: float | None) -> float:
        """Return the factor of a weight that falls linearly to 0 at a fraction of the run."""
        if until is None or until < 0:
            return 1.0
        progress = self.global_step / max(1, int(self.trainer.estimated_stepping_batches))
        return max(0.0, 1.0 - progress / until) if until else 0.0

    def _log_training(
        self, losses: HardAttentionLosses, rollouts: PlaceRollouts, scale: float
    ) -> None:
        self.log("train/loss", losses.bound.detach() * scale, prog_bar=True)
        words = rollouts.place_log_probs.numel()
        valid = rollouts.pad(torch.ones_like(rollouts.place_log_probs), self.num_rollouts)
        advantages = losses.advantages[valid.bool()]
        entropy = categorical_entropy(rollouts.probabilities.detach()).mean()
        self.log("train/attention_entropy", entropy)
        self.log("policy/reward", losses.rewards.sum() / words, prog_bar=True)
        self.log("policy/advantage_std", advantages.std(correction=0))
        if self.value_baseline is not None:
            self.log("policy/baseline_loss", losses.baseline.detach())
