"""Rewards and losses of glimpse models."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from visattn.functional.reinforce import (
    categorical_log_prob,
    gaussian_log_prob,
    reinforce_loss,
    rewards_to_go,
    value_baseline_loss,
)
from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.reduce import all_reduce_std

RewardType = Literal["correct", "gain"]


def label_sequences(labels: Int[Tensor, "b ..."]) -> Int[Tensor, "b s"]:
    """Return labels as sequences: those of images with a single label have length 1.

    Example:
        >>> label_sequences(torch.tensor([7, 2]))
        tensor([[7],
                [2]])
    """
    return labels.unsqueeze(1) if labels.ndim == 1 else labels


def label_per_glimpse(labels: Int[Tensor, "b ..."], num_glimpses: int) -> Int[Tensor, "b t"]:
    """Return the label that each glimpse is to read; all labels take equally many glimpses.

    Example:
        >>> label_per_glimpse(torch.tensor([[7, 2]]), 4)
        tensor([[7, 7, 2, 2]])
    """
    labels = label_sequences(labels)
    if num_glimpses % labels.shape[1]:
        raise ValueError(
            "the number of glimpses must be a multiple of the number of labels, got "
            f"{num_glimpses} glimpses for {labels.shape[1]} labels"
        )
    return labels.repeat_interleave(num_glimpses // labels.shape[1], 1)


def true_class_log_prob(
    logits: Float[Tensor, "b m t k"], labels: Int[Tensor, "b ..."]
) -> Float[Tensor, "b m t_and_1"]:
    """Return the log-probability of the true class before all glimpses and after each, in nats.

    Before the first glimpse all classes are equally probable. Of a sequence, the true class is that
    of the label that the glimpse is to read; the result of padding (`IGNORE_LABEL`) is 0.

    Example:
        >>> true_class_log_prob(torch.zeros(1, 1, 2, 4), torch.tensor([3])).exp()
        tensor([[[0.2500, 0.2500, 0.2500]]])
    """
    targets = label_per_glimpse(labels, logits.shape[2])[:, None].expand(logits.shape[:3])
    present = targets != IGNORE_LABEL
    log_prob = categorical_log_prob(logits, targets.where(present, 0)).where(present, 0.0)
    uniform = torch.full_like(log_prob[..., :1], -math.log(logits.shape[-1]))
    return torch.cat([uniform, log_prob], -1)


def log_prob_before_glimpses(
    logits: Float[Tensor, "b m t k"], labels: Int[Tensor, "b ..."]
) -> Float[Tensor, "b m t"]:
    """Return the log-probability of the true class just before each glimpse, in nats.

    Before the first glimpse of each label all classes are equally probable.

    Example:
        >>> logits = torch.tensor([[[[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]]])
        >>> log_prob_before_glimpses(logits, torch.tensor([[0, 1]])).exp().round(decimals=2)
        tensor([[[0.5000, 1.0000, 0.5000, 1.0000]]])
    """
    before = true_class_log_prob(logits, labels)[..., :-1].clone()
    first = before[..., :: logits.shape[2] // label_sequences(labels).shape[1]]
    first.fill_(-math.log(logits.shape[-1]))  # an assignment would copy the number from the host
    return before


@torch.no_grad()
def rewarded_actions(
    logits: Float[Tensor, "b m t k"], labels: Int[Tensor, "b ..."]
) -> Bool[Tensor, "b m t"]:
    """Return whether the action that leads to each glimpse can still earn a reward.

    These are the actions that lead to glimpses at an existing label with no earlier label misread.
    All others must have no gradient. Whether an action counts is decided before it is taken.

    Example:
        >>> logits = torch.tensor([[[[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [9.0, 0.0]]]])
        >>> rewarded_actions(logits, torch.tensor([[1, 1]]))
        tensor([[[ True,  True, False, False]]])

    Source:
        Ba et al. 2015, arXiv:1412.7755, section 3.3.
    """
    sequences = label_sequences(labels).unsqueeze(1)
    step = logits.shape[2] // sequences.shape[2]
    correct = logits[:, :, step - 1 :: step].argmax(-1) == sequences
    before = torch.cat([torch.ones_like(correct[..., :1]), correct[..., :-1]], -1)
    counted = (sequences != IGNORE_LABEL) & before.int().cumprod(-1).bool()
    return counted.repeat_interleave(step, -1)


@torch.no_grad()
def classification_rewards(
    logits: Float[Tensor, "b m t k"], labels: Int[Tensor, "b ..."], reward: RewardType = "correct"
) -> Float[Tensor, "b m t"]:
    """Return the reward of the action that leads to each glimpse of rollouts.

    The reward of a sequence of labels is the sum over its labels, each read after the last of its
    glimpses. An action is rewarded for the label that it leads to and for all later ones. The first
    misread label ends the rewards.

    Args:
        logits: Class logits after each glimpse.
        labels: True classes, or sequences of them padded with `IGNORE_LABEL`.
        reward: As in `GlimpseTask`; the `gain` of later labels is their probability.

    Example:
        >>> logits = torch.tensor([[[[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]]])
        >>> classification_rewards(logits, torch.tensor([1]))
        tensor([[[1., 1., 1.]]])
        >>> pair = torch.tensor([[[[0.0, 9.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]]])
        >>> classification_rewards(pair, torch.tensor([[1, 1]]))
        tensor([[[2., 2., 1., 1.]]])
    """
    # Six glimpses that read three labels, two for each; the second label is misread:
    #
    #     glimpse                        0  1  2  3  4  5
    #     label that it is to read       0  0  1  1  2  2
    #     label is read after it            x     x     x      [step - 1 :: step]
    #     right                             1     0     1
    #     reward `correct` to go         1  1  0  0  0  0      the third label does not count
    #     action can earn a reward       1  1  1  1  0  0      `rewarded_actions`
    sequences = label_sequences(labels).unsqueeze(1)
    step = logits.shape[2] // sequences.shape[2]
    counted = rewarded_actions(logits, labels)
    if reward == "correct":
        rewards = (logits[:, :, step - 1 :: step].argmax(-1) == sequences).to(logits.dtype)
    else:
        rewards = true_class_log_prob(logits, labels)[:, :, step::step].exp()
    to_go = rewards_to_go(rewards * counted[..., ::step]).repeat_interleave(step, -1)
    if reward == "gain":
        to_go = (to_go - log_prob_before_glimpses(logits, labels).exp()) * counted
    return to_go


class ValueBaseline(nn.Module):
    """Predicts the expected reward from what is known before an action.

    The inputs must not depend on the action, otherwise the policy gradient is biased. The hidden
    state before the action does not. Neither does the probability of the true class at that time,
    which only training knows and which predicts the outcome of a rollout best.

    Before training it predicts `initial_value`. `informed`, it has the log-probability of the true
    class as an input too, and a hidden layer.

    Example:
        >>> baseline = ValueBaseline(5, initial_value=0.1)
        >>> baseline(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4))[0, 0]
        tensor([0.1000, 0.1000, 0.1000, 0.1000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, hidden_size: int, *, initial_value: float, informed: bool = False) -> None:
        super().__init__()
        self.informed = informed
        self.hidden = nn.Linear(hidden_size + 2, 64) if informed else None
        self.output = nn.Linear(64 if informed else hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, initial_value)

    def forward(
        self, hidden_states: Float[Tensor, "*b d"], log_probs: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b"]:
        """Return the expected reward before each action; no gradient flows into the inputs."""
        features = hidden_states.detach()
        if self.hidden is not None:
            certainty = torch.stack([log_probs, log_probs.exp()], -1).detach()
            features = self.hidden(torch.cat([features, certainty], -1)).relu()
        return self.output(features).squeeze(-1)


@dataclass(frozen=True, eq=False)
class GlimpseLosses:
    """The losses of a batch of rollouts, with the rewards behind them.

    Args:
        classification: Cross-entropy; trains the glimpse network, the core and the classifier.
        policy: REINFORCE loss; trains the policy.
        baseline: Mean squared error of the baseline.
        rewards: Reward of each action.
        expected_rewards: Baseline of each action.
        advantages: Rewards minus baselines, normalized if configured.
    """

    classification: Float[Tensor, ""]
    policy: Float[Tensor, ""]
    baseline: Float[Tensor, ""]
    rewards: Float[Tensor, "b m a"]
    expected_rewards: Float[Tensor, "b m a"]
    advantages: Float[Tensor, "b m a"]

    @property
    def total(self) -> Float[Tensor, ""]:
        """The sum of the losses; most parameters have a gradient from one of them only."""
        return self.classification + self.policy + self.baseline


def compute_glimpse_losses(
    rollout: GlimpseRollout,
    labels: Int[Tensor, "b ..."],
    baseline: ValueBaseline,
    *,
    policy_std: Float[Tensor, ""],
    reward: RewardType = "correct",
    normalize_advantages: bool = False,
    policy_loss_weight: float = 1.0,
    aux_loss_weight: float = 0.0,
) -> GlimpseLosses:
    """Return the losses of rollouts; for the options see `GlimpseTask`.

    Every label of a sequence is classified after the last of its glimpses. Actions after the first
    misread label, whose reward is 0 whatever they are, have no gradient. The baseline is the reward
    that is expected from what is known before an action.
    """
    # Action i leads to glimpse i; a given first location is none.
    first = rollout.logits.shape[2] - rollout.policy_means.shape[2]
    rewards = classification_rewards(rollout.logits, labels, reward)[..., first:]
    rewarded = rewarded_actions(rollout.logits, labels)[..., first:]
    log_probs = log_prob_before_glimpses(rollout.logits.detach(), labels)
    values = baseline(rollout.policy_states, log_probs[..., first:])
    advantages = (rewards - values.detach()) * rewarded
    expected_rewards = rewards - advantages
    if normalize_advantages and advantages.numel() > 1:
        advantages = advantages / all_reduce_std(advantages).clamp(min=1e-6)
    chosen = gaussian_log_prob(rollout.policy_samples, rollout.policy_means, policy_std)
    nothing = rewards.new_zeros(())
    return GlimpseLosses(
        classification=_classification_loss(rollout.logits, labels, aux_loss_weight),
        policy=policy_loss_weight * reinforce_loss(chosen, advantages),
        baseline=value_baseline_loss(values, rewards, rewarded) if rewards.numel() else nothing,
        rewards=rewards,
        expected_rewards=expected_rewards,
        advantages=advantages.detach(),
    )


def total_cross_entropy(
    logits: Float[Tensor, "b t k"], labels: Int[Tensor, "b ..."]
) -> tuple[Float[Tensor, ""], int]:
    """Return the summed cross-entropy, in nats, of all labels after their last glimpse, and count.

    Padding is left out of both.
    """
    sequences = label_sequences(labels)
    step = logits.shape[1] // sequences.shape[1]
    read = logits[:, step - 1 :: step].flatten(0, 1)
    targets = sequences.flatten()
    total = cross_entropy(read, targets, reduction="sum", ignore_index=IGNORE_LABEL)
    return total, int((targets != IGNORE_LABEL).sum())


def label_targets(
    model: RecurrentAttentionModel, labels: Int[Tensor, "b ..."]
) -> Int[Tensor, "b ..."]:
    """Return the labels that a model is to read: with its end class after each sequence.

    Raises:
        ValueError: If sequences have different lengths and the model has no end class.
    """
    if model.end_class is not None:
        lengths = (labels != IGNORE_LABEL).sum(1, keepdim=True)
        padding = torch.full_like(labels[:, :1], IGNORE_LABEL)
        end = model.class_names.index(model.end_class)
        return torch.cat([labels, padding], 1).scatter(1, lengths, end)
    if model.num_labels > 1 and (labels == IGNORE_LABEL).any():
        raise ValueError(
            f"the images have different numbers of labels, at most {model.num_labels}: set "
            "end_class of the model, so that it learns where a sequence ends"
        )
    return labels


def check_num_labels(model: RecurrentAttentionModel, max_length: int) -> None:
    """Refuse a model that reads another number of labels per image than the data have."""
    num_labels = model.num_labels - (model.end_class is not None)
    if num_labels != max_length:
        raise ValueError(
            f"the data have up to {max_length} label{'s' * (max_length > 1)} per image, but the "
            f"model reads {num_labels}: use DRAM with max_objects={max_length}, or other data"
        )


def _classification_loss(
    logits: Float[Tensor, "b m t k"],
    labels: Int[Tensor, "b ..."],
    aux_loss_weight: float,
) -> Float[Tensor, ""]:
    targets = label_per_glimpse(labels, logits.shape[2])[:, None].expand(logits.shape[:3])
    step = logits.shape[2] // label_sequences(labels).shape[1]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 2), targets.flatten(), ignore_index=IGNORE_LABEL)

    last = loss(logits[:, :, step - 1 :: step], targets[:, :, step - 1 :: step])
    return last + aux_loss_weight * loss(logits, targets) if aux_loss_weight else last
