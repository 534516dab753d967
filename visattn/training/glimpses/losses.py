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
    """Return labels as sequences; single labels become sequences of length 1.

    Example:
        >>> label_sequences(torch.tensor([7, 2]))
        tensor([[7],
                [2]])
    """
    return labels.unsqueeze(1) if labels.ndim == 1 else labels


@torch.no_grad()
def glimpse_rewards(
    logits: Float[Tensor, "b m t k"], labels: Int[Tensor, "b ..."], reward: RewardType = "correct"
) -> tuple[Float[Tensor, "b m t"], Bool[Tensor, "b m t"], Float[Tensor, "b m t"]]:
    """Return the reward of the action that leads to each glimpse, with intermediate values.

    The reward of a sequence of labels is the sum over its labels, each read after the last of its
    glimpses. An action is rewarded for the label it leads to and for all later ones, up to the
    first misread label.

    Args:
        logits: Class logits after each glimpse.
        labels: True classes, or sequences of them padded with `IGNORE_LABEL`; all take the same
            number of glimpses.
        reward: As in `GlimpseTask`; the `gain` of later labels is their probability.

    Returns:
        The rewards; whether an action can still earn one, which is known before it is taken (other
        actions must have no gradient); and the log-probability of the true class just before each
        glimpse, in nats: before the first one of a label all classes are equally probable.

    Example:
        >>> pair = torch.tensor([[[[0.0, 9.0], [0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]]])
        >>> rewards, counted, before = glimpse_rewards(pair, torch.tensor([[1, 0]]))
        >>> rewards, before.exp().round(decimals=2)
        (tensor([[[2., 2., 1., 1.]]]), tensor([[[0.5000, 1.0000, 0.5000, 1.0000]]]))
        >>> glimpse_rewards(pair, torch.tensor([[0, 0]]))[1]
        tensor([[[ True,  True, False, False]]])

    Source:
        Ba et al. 2015, arXiv:1412.7755, section 3.3.
    """
    # Six glimpses that read three labels, two for each; the second label is misread:
    #
    #     glimpse                        0  1  2  3  4  5
    #     label that it is to read       0  0  1  1  2  2
    #     label is read after it            x     x     x      [..., -1] of s labels x g glimpses
    #     right                             1     0     1
    #     reward `correct` to go         1  1  0  0  0  0      the third label does not count
    #     action can earn a reward       1  1  1  1  0  0
    sequences = label_sequences(labels)[:, None]  # [b 1 s]
    by_label = logits.unflatten(2, (sequences.shape[2], -1))  # [b m s g k]
    right = by_label[..., -1, :].argmax(-1) == sequences
    so_far = torch.cat([torch.ones_like(right[..., :1]), right[..., :-1]], -1).int().cumprod(-1)
    counted = (sequences != IGNORE_LABEL) & so_far.bool()
    targets = sequences.clamp(min=0)[..., None].expand(by_label.shape[:-1])
    after = categorical_log_prob(by_label, targets)
    uniform = torch.full_like(after[..., :1], -math.log(logits.shape[-1]))
    before = torch.cat([uniform, after[..., :-1]], -1)
    earned = right.to(logits.dtype) if reward == "correct" else after[..., -1].exp()
    rewards = rewards_to_go(earned * counted)[..., None].expand_as(before)
    counted = counted[..., None].expand_as(before)
    if reward == "gain":
        rewards = (rewards - before.exp()) * counted
    return rewards.flatten(2), counted.flatten(2), before.flatten(2)


class ValueBaseline(nn.Module):
    """Predicts the expected reward from values that are known before an action.

    The inputs must not depend on the action, otherwise the policy gradient is biased. They are the
    hidden state before the action and, if `informed`, the probability of the true class at that
    time, which is known only in training and predicts the outcome of a rollout best.

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
    """The losses of a batch of rollouts, with their rewards.

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
        """The sum of the losses; most parameters have a gradient from only one of them."""
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
    misread label have reward 0 and no gradient. The baseline is the expected reward before an
    action.
    """
    # Action i leads to glimpse i; a given first location is not an action.
    first = rollout.logits.shape[2] - rollout.policy_means.shape[2]
    known = glimpse_rewards(rollout.logits, labels, reward)
    rewards, counted, log_probs = (each[..., first:] for each in known)
    values = baseline(rollout.policy_states, log_probs)
    advantages = (rewards - values.detach()) * counted
    expected_rewards = rewards - advantages
    if normalize_advantages and advantages.numel() > 1:
        advantages = advantages / all_reduce_std(advantages).clamp(min=1e-6)
    chosen = gaussian_log_prob(rollout.policy_samples, rollout.policy_means, policy_std)
    nothing = rewards.new_zeros(())
    return GlimpseLosses(
        classification=_classification_loss(rollout.logits, labels, aux_loss_weight),
        policy=policy_loss_weight * reinforce_loss(chosen, advantages),
        baseline=value_baseline_loss(values, rewards, counted) if rewards.numel() else nothing,
        rewards=rewards,
        expected_rewards=expected_rewards,
        advantages=advantages.detach(),
    )


def label_targets(
    model: RecurrentAttentionModel, labels: Int[Tensor, "b ..."]
) -> Int[Tensor, "b ..."]:
    """Return the target labels of a model, with its end class after each sequence.

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


def _classification_loss(
    logits: Float[Tensor, "b m t k"],
    labels: Int[Tensor, "b ..."],
    aux_loss_weight: float,
) -> Float[Tensor, ""]:
    sequences = label_sequences(labels)
    by_label = logits.unflatten(2, (sequences.shape[1], -1))
    targets = sequences[:, None, :, None].expand(by_label.shape[:-1])

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_LABEL)

    last = loss(by_label[..., -1, :], targets[..., -1])
    return last + aux_loss_weight * loss(by_label, targets) if aux_loss_weight else last
