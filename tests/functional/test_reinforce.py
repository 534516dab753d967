"""REINFORCE estimators against exact gradients of enumerable problems."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from visattn.functional.reinforce import (
    Reduction,
    categorical_entropy,
    categorical_log_prob,
    entropy_rewards,
    explained_variance,
    gaussian_log_prob,
    leave_one_out_advantages,
    reinforce_loss,
    rewards_to_go,
    value_baseline_loss,
)

# ---- two choices of three each, the second conditioned on the first: nine rollouts in all

FIRST = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64)
SECOND = torch.tensor([[0.1, 0.5, -0.4], [-1.0, 0.2, 0.9], [0.6, -0.3, 0.0]], dtype=torch.float64)
TABLE = torch.tensor([[1.0, 0.0, 0.3], [0.2, 0.9, -0.5], [0.0, 0.7, 0.1]], dtype=torch.float64)
PAIRS = torch.tensor(list(itertools.product(range(3), repeat=2)))
"""From the rollouts [n 2] to the baseline of each action [n 2]."""


def policy_logits() -> tuple[Tensor, Tensor]:
    return FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()


def action_log_probs(weights: tuple[Tensor, Tensor], rollouts: Tensor) -> Tensor:
    """Return the log-probabilities of the two actions of each rollout."""
    first, second = weights[0].log_softmax(0), weights[1].log_softmax(1)
    return torch.stack([first[rollouts[:, 0]], second[rollouts[:, 0], rollouts[:, 1]]], 1)


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def exact_gradient(rewards: Callable[[tuple[Tensor, Tensor]], Tensor]) -> Tensor:
    """Return the gradient of the expected rewards of the nine rollouts."""
    weights = policy_logits()
    probabilities = action_log_probs(weights, PAIRS).sum(1).exp()
    return flat(torch.autograd.grad((probabilities * rewards(weights)).sum(), weights))


Loss = Callable[[Tensor, Tensor, tuple[Tensor, Tensor]], Tensor]
"""Of the log-probabilities of actions, the actions, and the weights of the policy."""


def expected_gradient(losses: Loss, rollouts: int) -> Tensor:
    """Return the expected negative gradient of a loss over all sets of rollouts of one image."""
    total = torch.zeros(12, dtype=torch.float64)
    for numbers in itertools.product(range(9), repeat=rollouts):
        taken, weights = PAIRS[list(numbers)], policy_logits()
        log_probs = action_log_probs(weights, taken)
        loss = losses(log_probs, taken, weights)
        probability = log_probs.sum().exp().detach()
        total -= probability * flat(torch.autograd.grad(loss, weights))
    return total


def reward(taken: Tensor) -> Tensor:
    return TABLE[taken[:, 0], taken[:, 1]]


UNBIASED_BASELINES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda taken: torch.zeros(len(taken), 2, dtype=torch.float64),
    "half": lambda taken: torch.full((len(taken), 2), 0.5, dtype=torch.float64),
    # the first action is known before the second one
    "state": lambda taken: torch.stack(
        [torch.full((len(taken),), 0.4), TABLE.mean(1)[taken[:, 0]]], 1
    ),
}


@pytest.mark.parametrize("baseline", UNBIASED_BASELINES)
def test_losses_have_the_exact_gradient(baseline: str) -> None:
    def residual(taken: Tensor) -> Tensor:
        return reward(taken).unsqueeze(1) - UNBIASED_BASELINES[baseline](taken)

    def loss(log_probs: Tensor, taken: Tensor, _: object) -> Tensor:
        return reinforce_loss(log_probs, residual(taken))

    def others(log_probs: Tensor, taken: Tensor, _: object) -> Tensor:
        return reinforce_loss(log_probs[None], leave_one_out_advantages(residual(taken)[None]))

    exact = exact_gradient(lambda _: reward(PAIRS))
    for losses, rollouts in ((loss, 1), (loss, 2), (others, 2)):
        torch.testing.assert_close(expected_gradient(losses, rollouts), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_passes_no_gradient_to_advantages(reduction: Reduction) -> None:
    advantages = torch.ones(3, 2, requires_grad=True)
    log_probs = torch.ones(3, 2, requires_grad=True)
    reinforce_loss(log_probs, advantages, reduction=reduction).backward()
    assert advantages.grad is None
    assert log_probs.grad is not None
    assert float(log_probs.grad[0, 0]) == pytest.approx({"sum": -1 / 3, "mean": -1 / 6}[reduction])


def test_gaussian_log_prob_matches_torch() -> None:
    random = torch.Generator().manual_seed(1)
    samples, means = torch.randn(2, 3, 5, 2, generator=random, dtype=torch.float64).unbind(0)
    samples, means = samples.requires_grad_(), means.requires_grad_()
    std = torch.tensor(0.37, dtype=torch.float64, requires_grad=True)
    distribution = Normal(means, std)
    log_prob = gaussian_log_prob(samples, means, std)
    torch.testing.assert_close(log_prob, distribution.log_prob(samples).sum(-1))
    gradients = torch.autograd.grad(log_prob.sum(), (means, std), retain_graph=True)
    expected = torch.autograd.grad(distribution.log_prob(samples.detach()).sum(), (means, std))
    torch.testing.assert_close(gradients, expected)
    assert torch.autograd.grad(log_prob.sum(), samples, allow_unused=True) == (None,)


def test_explained_variance_of_a_baseline() -> None:
    rewards = torch.tensor([0.0, 1.0, 5.0])
    for predictions, share in (([0.0, 1, 5], 1.0), ([2.0] * 3, 0.0), ([0.0, 0.5, 2.5], 0.75)):
        assert float(explained_variance(torch.tensor(predictions), rewards)) == pytest.approx(share)
    for constant in (torch.ones(3), torch.tensor(-1.0986).expand(3)):
        assert explained_variance(rewards, constant).isnan()
        assert explained_variance(constant, constant).isnan()


def test_the_baseline_alone_is_trained_towards_the_mean_reward() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5], requires_grad=True)
    for value, slope in ((0.0, -1.0), (0.5, 0.0)):
        values = torch.tensor(value, requires_grad=True)
        value_baseline_loss(values.expand(3), rewards).backward()
        assert rewards.grad is None
        assert float(values.grad or 0) == pytest.approx(slope)


def step_rewards(taken: Tensor) -> Tensor:
    """Return the reward after the first action, by it; and after the second, by both."""
    return torch.stack([TABLE[0, taken[:, 0]], TABLE.mT[taken[:, 0], taken[:, 1]]], 1)


def step_entropies(weights: tuple[Tensor, Tensor], taken: Tensor) -> Tensor:
    """Return the entropy of the policy before each action of rollouts."""
    first = categorical_entropy(weights[0].softmax(0)).expand(len(taken))
    return torch.stack([first, categorical_entropy(weights[1].softmax(1))[taken[:, 0]]], 1)


def test_entropy_needs_the_entropies_of_later_steps_as_rewards() -> None:
    exact = exact_gradient(
        lambda weights: (step_rewards(PAIRS) + 0.3 * step_entropies(weights, PAIRS)).sum(1)
    )
    for later, bound in ((1.0, 1e-12), (0.0, None)):

        def loss(log_probs: Tensor, taken: Tensor, weights: Any, later: float = later) -> Tensor:
            entropies = step_entropies(weights, taken)
            rewards = rewards_to_go(step_rewards(taken)) + later * entropy_rewards(entropies, 0.3)
            return reinforce_loss(log_probs, rewards) - 0.3 * entropies.sum()

        error = (expected_gradient(loss, 1) - exact).norm()
        assert error < bound if bound else error > 1e-3


def test_categorical_log_prob_and_entropy_match_torch() -> None:
    random = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 5, 7, generator=random, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(7, (3, 5), generator=random)
    distribution = Categorical(logits=logits)
    log_prob, entropy = (
        categorical_log_prob(logits, actions),
        categorical_entropy(logits.softmax(-1)),
    )
    torch.testing.assert_close(log_prob, distribution.log_prob(actions))
    torch.testing.assert_close(entropy, distribution.entropy())
    (gradient,) = torch.autograd.grad(entropy.sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(distribution.entropy().sum(), logits)
    torch.testing.assert_close(gradient, expected)
    certain = torch.tensor([[1.0, 0.0, 0.0]], requires_grad=True)
    categorical_entropy(certain).sum().backward()
    assert certain.grad is not None
    assert bool(certain.grad.isfinite().all())
