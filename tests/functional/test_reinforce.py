"""Rewards into gradients, held against the expectation over everything that can happen."""

import itertools
import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

from visattn.functional.reinforce import (
    Reward,
    explained_variance,
    gaussian_entropy,
    gaussian_log_density,
    leave_one_out,
    policy_loss,
    rewards_to_go,
    rollout_loss,
)

REWARDS = st.lists(st.floats(-9, 9), min_size=2, max_size=7)


@given(rewards=REWARDS)
def test_each_is_held_against_the_mean_of_the_others(rewards: list[float]) -> None:
    got = leave_one_out(torch.tensor([rewards], dtype=torch.float64))[0].tolist()
    for place, reward in enumerate(rewards):
        others = rewards[:place] + rewards[place + 1 :]
        assert got[place] == pytest.approx(reward - sum(others) / len(others), abs=1e-9)
    assert sum(got) == pytest.approx(0, abs=1e-8)


def test_one_sample_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="at least 2 samples"):
        leave_one_out(torch.zeros(3, 1))


def test_the_expected_gradient_is_that_of_the_expected_reward() -> None:
    """Two samples of one word out of three, all nine pairs counted with their probability."""
    logits = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([1.0, 0.2, -0.5], dtype=torch.float64)
    log_p = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad((log_p.exp() * reward).sum(), logits, retain_graph=True)
    total = torch.zeros(3, dtype=torch.float64)
    for pair in itertools.product(range(3), repeat=2):
        words = torch.tensor(pair)
        advantages = leave_one_out(reward[words][None])[0]
        loss = policy_loss(log_p[words], advantages)
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        total += log_p[words].sum().exp().detach() * gradient
    torch.testing.assert_close(total, -wanted)


def test_no_gradient_flows_into_the_advantages() -> None:
    advantages = torch.tensor([1.0, -1.0], requires_grad=True)
    policy_loss(torch.tensor([-1.0, -2.0], requires_grad=True), advantages).backward()
    assert advantages.grad is None


# ---- two choices in a row, each of three, the second knowing the first: all nine rollouts counted

FIRST = torch.tensor([0.3, -0.7, 0.2], dtype=torch.float64)
SECOND = torch.tensor([[0.1, 0.5, -0.4], [-1.0, 0.2, 0.9], [0.6, -0.3, 0.0]], dtype=torch.float64)
TABLE = torch.tensor([[1.0, 0.0, 0.3], [0.2, 0.9, -0.5], [0.0, 0.7, 0.1]], dtype=torch.float64)
PAIRS = torch.tensor(list(itertools.product(range(3), repeat=2)))
Told = Callable[[Tensor], Tensor]
"""From the rollouts [n 2] to what is taken off the reward of each action [n 2]."""


def choices() -> tuple[Tensor, Tensor]:
    return FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()


def likelihoods(weights: tuple[Tensor, Tensor], rollouts: Tensor) -> Tensor:
    """Log-probabilities of the two actions of each rollout."""
    first, second = weights[0].log_softmax(0), weights[1].log_softmax(1)
    return torch.stack([first[rollouts[:, 0]], second[rollouts[:, 0], rollouts[:, 1]]], 1)


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def exact() -> Tensor:
    """The gradient of the expected reward."""
    weights = choices()
    chances = likelihoods(weights, PAIRS).sum(1).exp()
    return flat(torch.autograd.grad((chances * TABLE[PAIRS[:, 0], PAIRS[:, 1]]).sum(), weights))


def expected(losses: Callable[[Tensor, Tensor], Tensor], rollouts: int) -> Tensor:
    """The expectation of minus the gradient of a loss over all sets of rollouts of one image."""
    total = torch.zeros(12, dtype=torch.float64)
    for numbers in itertools.product(range(9), repeat=rollouts):
        taken = PAIRS[list(numbers)]
        weights = choices()
        likely = likelihoods(weights, taken)
        loss = losses(likely, taken)
        chance = likely.sum().exp().detach()
        total -= chance * flat(torch.autograd.grad(loss, weights))
    return total


def reward(taken: Tensor) -> Tensor:
    return TABLE[taken[:, 0], taken[:, 1]]


BEFORE: dict[str, Told] = {
    "none": lambda taken: torch.zeros(len(taken), 2, dtype=torch.float64),
    "half": lambda taken: torch.full((len(taken), 2), 0.5, dtype=torch.float64),
    # what is known before the second action is the first one
    "state": lambda taken: torch.stack(
        [torch.full((len(taken),), 0.4), TABLE.mean(1)[taken[:, 0]]], 1
    ),
}
AFTER: dict[str, Told] = {
    "sees its action": lambda taken: TABLE.mean(1)[taken[:, 0]].unsqueeze(1).expand(-1, 2),
    "sees what comes": lambda taken: reward(taken).unsqueeze(1).expand(-1, 2) * 0.5,
}


@pytest.mark.parametrize("rollouts", [1, 2])
@pytest.mark.parametrize("baseline", BEFORE)
def test_the_loss_of_rollouts_has_the_exact_gradient(baseline: str, rollouts: int) -> None:
    def loss(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely, reward(taken).unsqueeze(1) - BEFORE[baseline](taken))

    torch.testing.assert_close(expected(loss, rollouts), exact(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("baseline", BEFORE)
def test_comparing_rollouts_keeps_the_exact_gradient(baseline: str) -> None:
    def loss(likely: Tensor, taken: Tensor) -> Tensor:
        surplus = reward(taken).unsqueeze(1) - BEFORE[baseline](taken)
        return rollout_loss(likely[None], leave_one_out(surplus[None]))

    torch.testing.assert_close(expected(loss, 2), exact(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("baseline", AFTER)
def test_a_baseline_that_knows_the_action_has_another_gradient(baseline: str) -> None:
    def loss(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely, reward(taken).unsqueeze(1) - AFTER[baseline](taken))

    assert (expected(loss, 1) - exact()).norm() > 0.2 * exact().norm()


def test_an_average_over_rollouts_before_the_product_has_another_gradient() -> None:
    """Two rollouts: half of the gradient is lost; compared with each other, all of it."""

    def averaged(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely.mean(0), reward(taken).mean().expand(2))

    torch.testing.assert_close(expected(averaged, 2), exact() / 2)

    def compared(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely.mean(0), leave_one_out(reward(taken)[None]).mean().expand(2))

    assert expected(compared, 2).norm() < 1e-12 < exact().norm()


def test_an_action_that_nothing_follows_adds_noise_alone() -> None:
    """Why the last of as many actions as glimpses is left out."""

    def loss(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely, torch.stack([FIRST[taken[:, 0]], torch.ones(len(taken))], 1))

    def without(likely: Tensor, taken: Tensor) -> Tensor:
        return rollout_loss(likely[:, :1], FIRST[taken[:, :1]])

    torch.testing.assert_close(expected(loss, 1), expected(without, 1))


def test_rewards_are_constants_to_the_loss_of_rollouts() -> None:
    advantages = torch.ones(3, 2, requires_grad=True)
    rollout_loss(torch.ones(3, 2, requires_grad=True), advantages).backward()
    assert advantages.grad is None


# ---- a Gaussian whose sample is cut off at 1, integrated

MEAN, SPREAD, STEP = 0.9, 0.2, 2e-5


def normal(at: float) -> float:
    return math.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)


def below(at: float) -> float:
    return (1 + math.erf(at / math.sqrt(2))) / 2


def gaussian_gradient(low: float, high: float, baseline: float, *, cut: bool) -> float:
    """Minus the gradient of the library's loss for the mean; reward 1 where low <= place <= high.

    The sample is integrated over 10 spreads on both sides, and everything before the library's
    functions is plain.
    """
    samples = torch.arange(-1.1 + STEP / 2, 2.9, STEP, dtype=torch.float64)
    density = torch.exp(-(((samples - MEAN) / SPREAD) ** 2) / 2) / (SPREAD * math.sqrt(2 * math.pi))
    places = samples.clamp(-1, 1)
    rewards = ((places >= low) & (places <= high)).double()
    mean = torch.tensor([MEAN], dtype=torch.float64, requires_grad=True)
    scored = places if cut else samples
    likely = gaussian_log_density(scored[:, None], mean.expand(len(samples), 1), SPREAD)
    shares = density * STEP * len(samples)
    loss = rollout_loss(likely[:, None], ((rewards - baseline) * shares)[:, None])
    return -float(torch.autograd.grad(loss, mean)[0])


BEYOND = SPREAD * normal((1 - MEAN) / SPREAD) - (1 - MEAN) * below((MEAN - 1) / SPREAD)
"""How far a sample goes beyond 1, in the mean."""


@pytest.mark.parametrize(
    ("low", "high", "exact", "said"),
    [
        (0.7, 9.0, normal(-1.0) / SPREAD, 1.20985),
        (0.2, 0.6, (normal(-3.5) - normal(-1.5)) / SPREAD, -0.64322),
    ],
)
@pytest.mark.parametrize("baseline", [0.0, 0.5, 0.84134])
def test_the_density_where_it_was_sampled_has_the_exact_gradient(
    low: float, high: float, exact: float, said: float, baseline: float
) -> None:
    assert exact == pytest.approx(said, abs=1e-5)
    found = gaussian_gradient(low, high, baseline, cut=False)
    assert found == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "baseline", "exact", "said"),
    [
        (0.7, 9.0, below(1.0), normal(-1.0) / SPREAD, 1.05295),
        (0.7, 9.0, 0.0, normal(-1.0) / SPREAD, 0.22087),
        (0.2, 0.6, below(-1.5) - below(-3.5), (normal(-3.5) - normal(-1.5)) / SPREAD, -0.57738),
    ],
)
def test_the_density_where_it_was_cut_off_has_not(
    low: float, high: float, baseline: float, exact: float, said: float
) -> None:
    """It is off by what the closed form says: far more than any noise."""
    push = BEYOND / SPREAD**2
    assert push == pytest.approx(0.98898, abs=1e-5)
    found = gaussian_gradient(low, high, baseline, cut=True)
    assert found == pytest.approx(said, abs=1e-5)
    at_edge = 1.0 if low <= 1 <= high else 0.0
    bias = -(at_edge - baseline) * push
    assert found - exact == pytest.approx(bias, abs=1e-6)
    assert abs(found - exact) > 0.05


def test_densities_and_entropy_are_those_of_a_gaussian() -> None:
    random = torch.Generator().manual_seed(1)
    samples, means = torch.randn(2, 3, 5, 2, generator=random, dtype=torch.float64).unbind(0)
    spread = torch.tensor(0.37, dtype=torch.float64, requires_grad=True)
    true = Normal(means, spread)
    found = gaussian_log_density(samples, means, spread)
    torch.testing.assert_close(found, true.log_prob(samples).sum(-1))
    torch.testing.assert_close(gaussian_entropy(spread), true.entropy()[0, 0].sum())
    (slope,) = torch.autograd.grad(found.sum(), spread, retain_graph=True)
    (wanted,) = torch.autograd.grad(true.log_prob(samples).sum(), spread)
    torch.testing.assert_close(slope, wanted)


def test_the_density_has_no_gradient_for_the_sample_and_one_for_the_mean() -> None:
    samples = torch.zeros(3, 2, requires_grad=True)
    means = torch.full((3, 2), 1.7, requires_grad=True)
    gaussian_log_density(samples, means, 0.5).sum().backward()
    assert samples.grad is None
    assert means.grad is not None
    torch.testing.assert_close(means.grad, torch.full((3, 2), -6.8))


@pytest.mark.parametrize("kind", get_args(Reward))
@pytest.mark.parametrize("actions", [None, 5, 0])
def test_rewards_are_what_follows_an_action(kind: Reward, actions: int | None) -> None:
    random = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 3, 5, 7, generator=random, dtype=torch.float64) * 2
    labels = torch.tensor([4, 1])
    scores[0, 1, -1, 4] = 9.0
    count = 4 if actions is None else actions
    found = rewards_to_go(scores, labels, kind, actions=actions)
    assert found.shape == (2, 3, count)
    for image, rollout, action in itertools.product(range(2), range(3), range(count)):
        told = scores[image, rollout].softmax(-1)
        true = [1 / 7, *(float(after[labels[image]]) for after in told)]  # before any glimpse
        before = true[action + 5 - count]
        wanted = {
            "correct": float(told[-1].argmax() == labels[image]),
            "log_probability": math.log(true[-1]),
            "gain": true[-1] - before,
        }[kind]
        assert float(found[image, rollout, action]) == pytest.approx(wanted, abs=1e-12)
    assert {"correct": {0.0, 1.0}}.get(kind, set()) <= set(found.flatten().tolist()) or not count


def test_no_gradient_flows_through_rewards() -> None:
    scores = torch.zeros(1, 1, 3, 2, requires_grad=True)
    for kind in get_args(Reward):
        assert not rewards_to_go(scores, torch.tensor([0]), kind).requires_grad


@pytest.mark.parametrize(
    ("predicted", "wanted"),
    [([0.0, 1.0, 5.0], 1.0), ([2.0, 2.0, 2.0], 0.0), ([0.0, 0.5, 2.5], 0.75)],
)
def test_the_share_of_variance_that_was_foreseen(predicted: list[float], wanted: float) -> None:
    true = torch.tensor([0.0, 1.0, 5.0])
    assert float(explained_variance(torch.tensor(predicted), true)) == pytest.approx(wanted)


def test_nothing_can_be_foreseen_of_what_never_varies() -> None:
    assert explained_variance(torch.tensor([0.0, 1.0, 5.0]), torch.ones(3)).isnan()
    assert explained_variance(torch.ones(3), torch.ones(3)).isnan()
    assert explained_variance(torch.zeros(7), torch.tensor(-1.0986).expand(7)).isnan()
