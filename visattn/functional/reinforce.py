"""Learning from rewards: what is sampled and turns out well becomes likelier.

Everything that REINFORCE needs stands here as plain functions, so that a test can hold each
against an exact gradient. What is easily wrong: the density is taken where it was sampled, not
where the sample was cut off to; nothing is averaged over rollouts before a density meets its own
reward; an action that nothing follows has no part; rewards and baselines are constants.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Reward = Literal["correct", "log_probability", "gain"]


def leave_one_out(rewards: Float[Tensor, "b k *rest"]) -> Float[Tensor, "b k *rest"]:
    """Return how much better each of k samples did than the others of the same image on average.

    The mean of the others does not depend on the sample itself, so taking it off leaves the
    expected gradient as it is and makes it far less noisy. The advantages of an image sum to 0.

    Args:
        rewards: Of k samples for each of b images.

    Raises:
        ValueError: If there is only one sample: it has nothing to be compared with.

    Example:
        >>> import torch
        >>> leave_one_out(torch.tensor([[1.0, 0.0, 0.5]]))
        tensor([[ 0.7500, -0.7500,  0.0000]])

    Source:
        Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", equation 8.
    """
    count = rewards.shape[1]
    if count < 2:
        raise ValueError(f"at least 2 samples per image can be compared, got {count}")
    return (rewards - rewards.mean(1, keepdim=True)) * (count / (count - 1))


def policy_loss(
    log_probabilities: Float[Tensor, " p"], advantages: Float[Tensor, " p"]
) -> Float[Tensor, ""]:
    """Return a loss whose gradient makes words likelier as far as their sample did better.

    Its value means nothing; its gradient is that of the expected reward, turned round, per word.

    Args:
        log_probabilities: Of the words of all samples, in nats.
        advantages: Of the sample that each word belongs to; no gradient flows into them.

    Example:
        >>> import torch
        >>> policy_loss(torch.tensor([-1.0, -2.0]), torch.tensor([0.5, -0.5]))
        tensor(-0.2500)

    Source:
        Williams 1992, REINFORCE; for captions Rennie et al. 2017, arXiv:1612.00563, equation 7.
    """
    return -(log_probabilities * advantages.detach()).mean()


def rollout_loss(
    log_probabilities: Float[Tensor, "*n a"], advantages: Float[Tensor, "*n a"]
) -> Float[Tensor, ""]:
    """Return a loss whose gradient is that of the expected reward of a rollout, turned round.

    Summed over the actions of a rollout, then averaged over rollouts.

    Args:
        log_probabilities: Of the a actions of each rollout, in nats.
        advantages: What each action is held to have gained; no gradient flows into them.

    Example:
        >>> import torch
        >>> rollout_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.5, 0.5]]))
        tensor(1.5000)

    Source:
        Mnih et al. 2014, arXiv:1406.6247, equation 2 with the baseline of the text after it.
    """
    return -(log_probabilities * advantages.detach()).sum(-1).mean()


def gaussian_log_density(
    samples: Float[Tensor, "*n d"], means: Float[Tensor, "*n d"], spread: float | Float[Tensor, ""]
) -> Float[Tensor, "*n"]:
    """Return the log density of samples under a Gaussian alike in all d directions, in nats.

    Samples are taken as they were drawn: where the eye then went, cut off at the image's edge,
    has no density. They are constants; gradients flow into means and spread.

    Args:
        samples: As drawn, before anything was cut off.
        means: Of the Gaussian.
        spread: Its standard deviation.

    Example:
        >>> import torch
        >>> round(float(gaussian_log_density(torch.zeros(2), torch.zeros(2), 1.0)), 4)
        -1.8379
    """
    spread = torch.as_tensor(spread, dtype=means.dtype, device=means.device)
    distances = ((samples.detach() - means) / spread).square().sum(-1) / 2
    return -distances - means.shape[-1] * (spread.log() + math.log(2 * math.pi) / 2)


def gaussian_entropy(spread: Float[Tensor, ""], directions: int = 2) -> Float[Tensor, ""]:
    """Return the entropy of a Gaussian alike in all directions, in nats.

    Example:
        >>> import torch
        >>> round(float(gaussian_entropy(torch.tensor(1.0))), 4)
        2.8379
    """
    return directions * (spread.log() + math.log(2 * math.pi * math.e) / 2)


def truth_told(
    scores: Float[Tensor, "b m t k"], labels: Int[Tensor, " b"]
) -> Float[Tensor, "b m t_and_1"]:
    """Return the log probability of the true class before all glimpses and after each, in nats.

    Before them all classes are held to be as probable.

    Args:
        scores: Of the classes after each glimpse, before softmax.
        labels: The true classes.

    Example:
        >>> truth_told(torch.zeros(1, 1, 2, 4), torch.tensor([3])).exp()
        tensor([[[0.2500, 0.2500, 0.2500]]])
    """
    true = labels.view(-1, 1, 1, 1).expand(*scores.shape[:3], 1)
    told = scores.log_softmax(-1).gather(-1, true).squeeze(-1)
    return torch.cat([torch.full_like(told[..., :1], -math.log(scores.shape[-1])), told], -1)


@torch.no_grad()
def rewards_to_go(
    scores: Float[Tensor, "b m t k"],
    labels: Int[Tensor, " b"],
    kind: Reward = "correct",
    *,
    actions: int | None = None,
) -> Float[Tensor, "b m a"]:
    """Return what follows each action of rollouts of t glimpses.

    Args:
        scores: Of the classes after each glimpse, before softmax.
        labels: The true classes.
        kind: `correct`: 1 where the class of the last glimpse is right, else 0.
            `log_probability`: that of the true class after the last glimpse, in nats. `gain`: by
            how much the true class has become more probable since just before the action.
        actions: How many: those between the glimpses, t - 1, if left out; t where the first place
            is chosen too.

    Example:
        >>> import torch
        >>> rewards_to_go(torch.tensor([[[[0.0, 1.0], [2.0, 1.0], [0.0, 3.0]]]]), torch.tensor([1]))
        tensor([[[1., 1.]]])
    """
    glimpses = scores.shape[2]
    actions = glimpses - 1 if actions is None else actions
    if kind == "correct":
        right = scores[:, :, -1].argmax(-1) == labels[:, None]
        return right.to(scores.dtype).unsqueeze(-1).expand(-1, -1, actions)
    told = truth_told(scores, labels)
    if kind == "log_probability":
        return told[..., -1:].expand(-1, -1, actions)
    return told[..., -1:].exp() - told[..., glimpses - actions : glimpses].exp()


def explained_variance(
    predicted: Float[Tensor, "*n"], true: Float[Tensor, "*n"]
) -> Float[Tensor, ""]:
    """Return the share of the variance of rewards that a baseline foresaw: 1 all, 0 none.

    Below 0 the baseline adds variance; NaN where there is none to foresee.

    Example:
        >>> import torch
        >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
        tensor(1.)
    """
    left = (true - predicted).var(correction=0) / true.var(correction=0)
    return torch.where(true.amax() > true.amin(), 1 - left, math.nan)  # rounding is no variance
