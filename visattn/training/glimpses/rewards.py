"""Rewards of glimpses that classify an image, or read a sequence of labels from it."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.functional.reinforce import categorical_log_prob, rewards_to_go
from visattn.results.kinds import IGNORE_LABEL

RewardType = Literal["correct", "log_probability", "gain"]


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

    Args:
        labels: True class of each image, or its sequence of true classes.
        num_glimpses: Number of glimpses.

    Raises:
        ValueError: If the number of glimpses is not a multiple of the number of labels.

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
    of the label that the glimpse is to read.

    Args:
        logits: Class logits after each glimpse.
        labels: True classes, or sequences of them padded with `IGNORE_LABEL`, for which the result
            is 0.

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
    before[..., :: logits.shape[2] // label_sequences(labels).shape[1]] = -math.log(
        logits.shape[-1]
    )
    return before


@torch.no_grad()
def rewarded_actions(
    logits: Float[Tensor, "b m t k"],
    labels: Int[Tensor, "b ..."],
    *,
    num_actions: int | None = None,
    stop_at_error: bool = True,
) -> Bool[Tensor, "b m a"]:
    """Return which actions can still earn a reward.

    These are the actions that lead to glimpses at an existing label with no earlier label misread.
    All others must have no gradient. Whether an action counts is decided before it is taken.

    Args:
        logits: Class logits after each glimpse; a label is read after the last of its glimpses.
        labels: True classes, or sequences of them padded with `IGNORE_LABEL`.
        num_actions: As for `classification_rewards`.
        stop_at_error: Whether a misread label ends the rewards.

    Example:
        >>> logits = torch.tensor([[[[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [9.0, 0.0]]]])
        >>> rewarded_actions(logits, torch.tensor([[0, 1]])), rewarded_actions(
        ...     logits, torch.tensor([[1, 1]])
        ... )
        (tensor([[[True, True, True]]]), tensor([[[ True, False, False]]]))

    Source:
        Ba et al. 2015, arXiv:1412.7755, section 3.3.
    """
    num_glimpses = logits.shape[2]
    sequences = label_sequences(labels).unsqueeze(1)
    step = num_glimpses // sequences.shape[2]
    counted = (sequences != IGNORE_LABEL).expand(-1, logits.shape[1], -1)
    if stop_at_error:
        correct = logits[:, :, step - 1 :: step].argmax(-1) == sequences
        before = torch.cat([torch.ones_like(correct[..., :1]), correct[..., :-1]], -1)
        counted = counted & before.int().cumprod(-1).bool()
    num_actions = num_glimpses - 1 if num_actions is None else num_actions
    return counted.repeat_interleave(step, -1)[..., num_glimpses - num_actions :]


@torch.no_grad()
def classification_rewards(
    logits: Float[Tensor, "b m t k"],
    labels: Int[Tensor, "b ..."],
    reward: RewardType = "correct",
    *,
    num_actions: int | None = None,
) -> Float[Tensor, "b m a"]:
    """Return the reward of each action of rollouts that classify an image with t glimpses.

    The reward of a sequence of labels is the sum over its labels, each read after the last of its
    glimpses. An action is rewarded for the label that it leads to and for all later ones. With
    `correct` and `gain` the first misread label ends the rewards.

    Args:
        logits: Class logits after each glimpse.
        labels: True classes, or sequences of them padded with `IGNORE_LABEL`.
        reward: `correct`: 1 if the class predicted after the last glimpse is right, else 0.
            `log_probability`: log-probability of the true class after the last glimpse, in nats.
            `gain`: increase of the probability of the true class since just before the action; for
            later labels their probability.
        num_actions: Number of actions; t - 1 by default, one between any two glimpses. It is t if
            the policy also chooses the first location.

    Example:
        >>> logits = torch.tensor([[[[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]]])
        >>> classification_rewards(logits, torch.tensor([1]))
        tensor([[[1., 1.]]])
        >>> pair = torch.tensor([[[[0.0, 9.0], [0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]]])
        >>> classification_rewards(pair, torch.tensor([[1, 1]]))
        tensor([[[2., 1., 1.]]])
    """
    num_glimpses = logits.shape[2]
    sequences = label_sequences(labels).unsqueeze(1)
    step = num_glimpses // sequences.shape[2]
    num_actions = num_glimpses - 1 if num_actions is None else num_actions
    counted = rewarded_actions(
        logits, labels, num_actions=num_glimpses, stop_at_error=reward != "log_probability"
    )
    if reward == "correct":
        rewards = (logits[:, :, step - 1 :: step].argmax(-1) == sequences).to(logits.dtype)
    else:
        rewards = true_class_log_prob(logits, labels)[:, :, step::step]
        rewards = rewards.exp() if reward == "gain" else rewards
    to_go = rewards_to_go(rewards * counted[..., ::step]).repeat_interleave(step, -1)
    if reward == "gain":
        to_go = (to_go - log_prob_before_glimpses(logits, labels).exp()) * counted
    return to_go[..., num_glimpses - num_actions :]
