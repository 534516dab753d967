"""REINFORCE: log-probabilities, rewards, baselines, losses and entropy of stochastic choices.

Recurrent glimpse models, self-critical captioning and hard attention all use these functions, and
each function is tested against the exact gradient of an enumerable problem. Four rules keep the
estimator unbiased:

- The log-probability is taken of the sample as drawn, before any clamping.
- Nothing is averaged over rollouts before a log-probability is multiplied by its own advantage.
- An action that cannot influence the reward is omitted.
- Rewards and baselines are constants, and a baseline does not depend on the action.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import mse_loss

Reduction = Literal["sum", "mean"]


def gaussian_log_prob(
    samples: Float[Tensor, "*n d"], means: Float[Tensor, "*n d"], std: float | Float[Tensor, ""]
) -> Float[Tensor, "*n"]:
    """Return the log density of samples under an isotropic Gaussian, in nats.

    The samples are constants; gradients flow into the means and the standard deviation.

    Args:
        samples: Samples as drawn. A location that was clamped to the image has no density.

    Example:
        >>> round(float(gaussian_log_prob(torch.zeros(2), torch.zeros(2), 1.0)), 4)
        -1.8379
    """
    std = torch.as_tensor(std, dtype=means.dtype, device=means.device)
    distances = ((samples.detach() - means) / std).square().sum(-1) / 2
    return -distances - means.shape[-1] * (std.log() + math.log(2 * math.pi) / 2)


def categorical_log_prob(
    logits: Float[Tensor, "*n k"], actions: Int[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """Return the log-probability of chosen categories, such as words or attended locations.

    Minus infinity excludes a category.

    Example:
        >>> categorical_log_prob(torch.zeros(1, 4), torch.tensor([2])).exp()
        tensor([0.2500])
    """
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(probabilities: Float[Tensor, "*n k"]) -> Float[Tensor, "*n"]:
    """Return the entropy of categorical distributions, in nats; 0 · log 0 counts as 0.

    Example:
        >>> categorical_entropy(torch.tensor([[0.5, 0.5], [0.25, 0.75]]))
        tensor([0.6931, 0.5623])

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.1: the entropy term of hard attention.
    """
    tiny = torch.finfo(probabilities.dtype).tiny
    return -(probabilities * probabilities.clamp_min(tiny).log()).sum(-1)


def rewards_to_go(rewards: Float[Tensor, "*n t"]) -> Float[Tensor, "*n t"]:
    """Return the sum of the rewards of each step and of all later steps.

    An action cannot change earlier rewards: omitting them keeps the gradient unbiased and reduces
    its variance.

    Args:
        rewards: Reward of each step, such as the log-probability of each word; 0 for padding.

    Example:
        >>> rewards_to_go(torch.tensor([[1.0, 2.0, 4.0]]))
        tensor([[7., 6., 4.]])
    """
    return rewards.flip(-1).cumsum(-1).flip(-1)


@torch.no_grad()
def entropy_rewards(entropies: Float[Tensor, "*n t"], weight: float) -> Float[Tensor, "*n t"]:
    """Return the weighted entropy of the policy at all later steps, as a reward for each action.

    The entropy of a step depends on earlier actions. A loss with `-weight * entropies` alone has a
    biased gradient; with these rewards added to the others its gradient is exact.

    Example:
        >>> entropy_rewards(torch.tensor([[1.0, 2.0, 4.0]]), 0.5)
        tensor([[3., 2., 0.]])
    """
    return weight * (rewards_to_go(entropies) - entropies)


def leave_one_out_advantages(rewards: Float[Tensor, "b k *rest"]) -> Float[Tensor, "b k *rest"]:
    """Return the reward of each of k samples minus the mean reward of the image's other samples.

    The mean of the others does not depend on the sample itself, so the gradient stays unbiased and
    has far less variance. The advantages of an image sum to 0.

    Args:
        rewards: Rewards of k > 1 samples for each of b images.

    Example:
        >>> leave_one_out_advantages(torch.tensor([[1.0, 0.0, 0.5]]))
        tensor([[ 0.7500, -0.7500,  0.0000]])

    Source:
        Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!", equation 8.
    """
    count = rewards.shape[1]
    # The reward minus the mean of the k - 1 others is k / (k - 1) times that minus the mean of all.
    return (rewards - rewards.mean(1, keepdim=True)) * (count / (count - 1))


def value_baseline_loss(
    values: Float[Tensor, "*n"],
    rewards: Float[Tensor, "*n"],
    counted: Bool[Tensor, "*n"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean squared error of a learned baseline; rewards get no gradient.

    Args:
        values: Expected rewards, predicted from what was known before each action.
        counted: Actions that count; None for all. The loss is 0 if there are none.

    Example:
        >>> value_baseline_loss(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(0.1250)
    """
    if counted is None:
        return mse_loss(values, rewards.detach())
    errors = (values - rewards.detach()).square()
    return (errors * counted).sum() / counted.sum().clamp(min=1)


def reinforce_loss(
    log_probs: Float[Tensor, "*n a"],
    advantages: Float[Tensor, "*n a"],
    *,
    reduction: Reduction = "sum",
) -> Float[Tensor, ""]:
    """Return the REINFORCE loss, whose gradient is the negative gradient of the expected reward.

    Only its gradient is meaningful, not its value.

    Args:
        log_probs: Log-probabilities of the a actions of each rollout, in nats.
        advantages: Reward of each action minus its baseline; no gradient flows into them.
        reduction: `sum` sums over the actions of a rollout and averages over rollouts; `mean`
            averages over all actions.

    Example:
        >>> reinforce_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.5, 0.5]]))
        tensor(1.5000)
        >>> words = torch.tensor([-1.0, -2.0])
        >>> reinforce_loss(words, torch.tensor([0.5, -0.5]), reduction="mean")
        tensor(-0.2500)

    Source:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist
        reinforcement learning"; Mnih et al. 2014, arXiv:1406.6247, equation 2; for captions Rennie
        et al. 2017, arXiv:1612.00563, equation 7.
    """
    losses = -(log_probs * advantages.detach())
    return losses.mean() if reduction == "mean" else losses.sum(-1).mean()


def explained_variance(
    predictions: Float[Tensor, "*n"], rewards: Float[Tensor, "*n"]
) -> Float[Tensor, ""]:
    """Return the fraction of the variance of the rewards that a baseline explains: 1 all, 0 none.

    Below 0 the baseline adds variance. The result is NaN if the rewards are constant.

    Example:
        >>> explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
        tensor(1.)
    """
    unexplained = (rewards - predictions).var(correction=0) / rewards.var(correction=0)
    constant = rewards.amax() <= rewards.amin()  # the variance of constants may be a rounding error
    return torch.where(constant, math.nan, 1 - unexplained)
