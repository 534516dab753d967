"""What reward is to be expected, learned beside the policy that earns it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from visattn.functional.reinforce import (
    Reward,
    gaussian_entropy,
    gaussian_log_density,
    leave_one_out,
    rewards_to_go,
    rollout_loss,
    truth_told,
)
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.distributed.reduce import spread_of_all


class ValueBaseline(nn.Module):
    """Read the reward to expect from what was known before an action.

    What it knows must not depend on the action; else the policy's gradient is biased. What is
    remembered does not. Nor does what training knows and the model does not: how probable the
    model held the true class to be. Of how a rollout will end, that tells most.

    Args:
        width: Numbers that are remembered.
        value: What it expects before it has learned anything.
        informed: Let it know the log probability of the true class, and read it by a hidden layer.

    Example:
        >>> ValueBaseline(5, value=0.1)(torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4))[0, 0]
        tensor([0.1000, 0.1000, 0.1000, 0.1000], grad_fn=<SelectBackward0>)
    """

    def __init__(self, width: int, *, value: float, informed: bool = False) -> None:
        super().__init__()
        self.informed = informed
        self.hidden = nn.Linear(width + 2, 64) if informed else None
        self.reading = nn.Linear(64 if informed else width, 1)
        nn.init.zeros_(self.reading.weight)
        nn.init.constant_(self.reading.bias, value)

    def forward(
        self, states: Float[Tensor, "b m a d"], told: Float[Tensor, "b m a"]
    ) -> Float[Tensor, "b m a"]:
        """Return the expected reward before each action.

        Args:
            states: What was remembered; no gradient flows into it.
            told: The log probability of the true class, in nats.
        """
        read = states.detach()
        if self.hidden is not None:
            sure = torch.stack([told, told.exp()], -1).detach()
            read = self.hidden(torch.cat([read, sure], -1)).relu()
        return self.reading(read).squeeze(-1)


@dataclass(frozen=True, eq=False)
class GlimpseLosses:
    """What is learned from, each part by its own parameters.

    Args:
        answer: Cross-entropy of the answers: trains the glimpse network, the core, the classifier.
        policy: That of REINFORCE: trains where to look.
        baseline: Squared error of a learned baseline; 0 if none is learned.
        rewards: What followed each action.
        expected: What the baseline expected to follow it, the other rollouts included where they
            are compared.
        advantages: What the action is held to have gained.
    """

    answer: Float[Tensor, ""]
    policy: Float[Tensor, ""]
    baseline: Float[Tensor, ""]
    rewards: Float[Tensor, "b m a"]
    expected: Float[Tensor, "b m a"]
    advantages: Float[Tensor, "b m a"]

    @property
    def total(self) -> Float[Tensor, ""]:
        """Their sum; most parameters feel one part only."""
        return self.answer + self.policy + self.baseline


def losses_of_looks(
    looks: GlimpseRollout,
    labels: Int[Tensor, " b"],
    *,
    spread: Float[Tensor, ""],
    baseline: ValueBaseline | Tensor | None = None,
    others: bool = False,
    reward: Reward = "correct",
    normalize: bool = False,
    policy_weight: float = 1.0,
    every_glimpse: float = 0.0,
    smoothing: float = 0.0,
    entropy: float = 0.0,
) -> GlimpseLosses:
    """Return what is learned from rollouts.

    Args:
        looks: The rollouts, with samples of the policy.
        labels: The true classes.
        spread: Of the policy.
        baseline: What reward is to be expected: a number, a reading of the state before an action,
            or nothing. It may know nothing of the action itself, nor of what came after.
        others: Compare each rollout with the others of its image, after the baseline.
        reward: As `visattn.functional.reinforce.rewards_to_go` takes it.
        normalize: Divide the advantages by their standard deviation, over all processes.
        policy_weight: Weight of the policy's loss.
        every_glimpse: Weight of the answers after each glimpse, beside the last one's.
        smoothing: Share of label smoothing.
        entropy: Weight of the policy's entropy; it counts where there are actions.

    Raises:
        ValueError: If there is one rollout only and it is to be compared with others.
    """
    rewards = rewards_to_go(looks.scores, labels, reward, actions=looks.means.shape[2])
    expected = _expected(baseline, looks, labels)
    surplus = rewards - expected.detach()
    acts = rewards.numel() > 0
    advantages = leave_one_out(surplus) if others and acts else surplus
    foreseen = rewards - advantages
    if normalize and advantages.numel() > 1:
        advantages = advantages / spread_of_all(advantages).clamp(min=1e-6)
    likely = gaussian_log_density(looks.samples, looks.means, spread)
    learned = acts and isinstance(baseline, ValueBaseline)
    return GlimpseLosses(
        answer=_answer_loss(looks.scores, labels, every_glimpse, smoothing),
        policy=policy_weight * rollout_loss(likely, advantages)
        - acts * entropy * gaussian_entropy(spread),
        baseline=mse_loss(expected, rewards) if learned else surplus.new_zeros(()),
        rewards=rewards,
        expected=foreseen,
        advantages=advantages.detach(),
    )


def _answer_loss(
    scores: Float[Tensor, "b m t k"], labels: Int[Tensor, " b"], every: float, smoothing: float
) -> Float[Tensor, ""]:
    true = labels.view(-1, 1).expand(scores.shape[:2]).flatten()
    last = cross_entropy(scores[:, :, -1].flatten(0, 1), true, label_smoothing=smoothing)
    if not every:
        return last
    each = cross_entropy(
        scores.flatten(0, 2), true.repeat_interleave(scores.shape[2]), label_smoothing=smoothing
    )
    return last + every * each


def _expected(
    baseline: ValueBaseline | Tensor | None, looks: GlimpseRollout, labels: Int[Tensor, " b"]
) -> Float[Tensor, "b m a"]:
    """Return what is expected to follow each action, from what was known before it."""
    actions = looks.means.shape[2]
    if not isinstance(baseline, ValueBaseline):
        value = 0.0 if baseline is None else baseline
        return torch.zeros_like(looks.means[..., 0]) + value
    states, told = looks.states.detach(), truth_told(looks.scores.detach(), labels)
    glimpses = states.shape[2]
    known = torch.cat([torch.zeros_like(states[:, :, :1]), states], 2)  # before the first: nothing
    before = slice(glimpses - actions, glimpses)
    return baseline(known[:, :, before], told[:, :, before])
