"""Hard attention: rewards and loss of the variational bound over sampled places."""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.reinforce import (
    entropy_rewards,
    leave_one_out_advantages,
    reinforce_loss,
    rewards_to_go,
    value_baseline_loss,
)

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

    Args:
        log_probs: Log-probability of the outcome under each sampled path.

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

    Args:
        word_log_probs: Log-probability of each word; 0 for padding.
        lengths: Words per caption.
        reward: Log-probability of this word and all later ones (`to_go`), of the whole caption
            (`total`, the paper), or its `mean` over the words (the authors' code).

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
