"""Rollouts of the recurrent attention model: locations, logits, states and actions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GlimpseRollout:
    """Results of m rollouts of t glimpses on each of b images.

    An action is the choice of the next location, so the last glimpse has none; if the first
    location is chosen by the policy too, there are as many actions as glimpses.

    Args:
        locations: x and y of each glimpse, in [-1, 1], the first one included.
        logits: Class logits after each glimpse.
        policy_states: Hidden state of the policy before each action.
        policy_means: Mean of the policy for each action, not clamped.
        policy_samples: Sample of the policy for each action, before clamping to the image.
    """

    locations: Float[Tensor, "b m t 2"]
    logits: Float[Tensor, "b m t k"]
    policy_states: Float[Tensor, "b m a d"]
    policy_means: Float[Tensor, "b m a 2"]
    policy_samples: Float[Tensor, "b m a 2"]


@dataclass(frozen=True, eq=False)
class Glimpse:
    """One glimpse of all rollouts.

    Args:
        location: x and y, in [-1, 1].
        hidden_state: Hidden state of the core after the glimpse, which is classified.
        policy_state: Hidden state of the policy before the glimpse.
        action: Mean and sample of the policy that chose the location; None if it was not chosen.
    """

    location: Float[Tensor, "r 2"]
    hidden_state: Float[Tensor, "r d"]
    policy_state: Float[Tensor, "r d"]
    action: tuple[Tensor, Tensor] | None


def stack_glimpses(
    glimpses: Sequence[Glimpse], logits: Float[Tensor, "r t k"], num_rollouts: int
) -> GlimpseRollout:
    """Stack successive glimpses into tensors with an axis for the rollouts.

    Args:
        glimpses: Glimpses of all rollouts; rollouts of the same image are adjacent rows.
        logits: Class logits after each glimpse.
        num_rollouts: Number of rollouts per image.

    Example:
        >>> glimpse = Glimpse(torch.zeros(6, 2), torch.zeros(6, 5), torch.zeros(6, 5), None)
        >>> rollout = stack_glimpses([glimpse, glimpse], torch.zeros(6, 2, 3), num_rollouts=2)
        >>> rollout.logits.shape, rollout.policy_means.shape
        (torch.Size([3, 2, 2, 3]), torch.Size([3, 2, 0, 2]))
    """
    chosen = [(glimpse.policy_state, *glimpse.action) for glimpse in glimpses if glimpse.action]
    first = glimpses[0]
    states, means, samples = (
        (torch.stack(part, 1) for part in zip(*chosen, strict=True))
        if chosen
        else (part[:, None][:, :0] for part in (first.policy_state, first.location, first.location))
    )
    tensors = (
        torch.stack([glimpse.location for glimpse in glimpses], 1), logits, states, means, samples,
    )  # fmt: skip
    return GlimpseRollout(*(tensor.unflatten(0, (-1, num_rollouts)) for tensor in tensors))
