"""Rewards into gradients, held against the expectation over everything that can happen."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.functional.policies import leave_one_out, policy_loss

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
