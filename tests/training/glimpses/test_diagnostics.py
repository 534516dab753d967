"""Diagnostics of a policy, against slower computations of the same numbers."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.training.glimpses.losses import (
    GlimpseLosses,
    GlimpseLossOptions,
    ValueBaseline,
    compute_glimpse_losses,
)
from visattn.training.glimpses.task import gradient_norms, policy_diagnostics

POLICY_STD = torch.tensor(0.4)


def value_baseline() -> ValueBaseline:
    torch.manual_seed(0)
    baseline = ValueBaseline(11, initial_value=0.3)
    nn.init.normal_(baseline.output.weight)
    return baseline


LABELS = torch.tensor([0, 2, 1, 0, 2])


def build_model() -> RecurrentAttentionModel:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(model.policy.mean.weight, std=0.3)
    return model


def sample_rollout(model: RecurrentAttentionModel, num_rollouts: int = 3) -> GlimpseRollout:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (5, 1, 9, 11), dtype=torch.uint8, generator=random)
    torch.manual_seed(1)
    return model.rollout(model.normalize(images), num_rollouts=num_rollouts, sample=True)


def diagnose(rollout: GlimpseRollout) -> tuple[dict[str, Tensor], GlimpseLosses]:
    losses = compute_glimpse_losses(
        rollout,
        LABELS,
        value_baseline(),
        GlimpseLossOptions(reward="gain"),
        policy_std=POLICY_STD,
    )
    return policy_diagnostics(rollout, losses, POLICY_STD), losses


def test_diagnostics_match_their_definitions() -> None:
    rollout = sample_rollout(build_model())
    diagnostics, losses = diagnose(rollout)
    assert set(diagnostics) == {
        "reward", "advantage_mean", "advantage_std", "explained_variance", "std", "entropy",
        "clamped_fraction", "mean_std",
    }  # fmt: skip
    flat = losses.rewards.flatten().tolist()
    assert float(diagnostics["reward"]) == pytest.approx(sum(flat) / len(flat))
    values = losses.advantages.flatten().tolist()
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert float(diagnostics["advantage_mean"]) == pytest.approx(mean, abs=1e-6)
    assert float(diagnostics["advantage_std"]) == pytest.approx(variance**0.5)
    whole = torch.tensor(flat, dtype=torch.float64).var(correction=0)
    assert float(diagnostics["explained_variance"]) == pytest.approx(
        1 - variance / float(whole), abs=1e-4
    )
    assert float(diagnostics["entropy"]) == pytest.approx(math.log(2 * math.pi * math.e * 0.4**2))
    outside = [max(abs(x), abs(y)) > 1 for x, y in rollout.policy_samples.reshape(-1, 2).tolist()]
    assert 0 < sum(outside) < len(outside)
    assert float(diagnostics["clamped_fraction"]) == pytest.approx(sum(outside) / len(outside))
    assert all(not value.requires_grad for value in diagnostics.values() if value is not POLICY_STD)


def test_explained_variance_of_equal_rewards_is_zero() -> None:
    rollout = sample_rollout(build_model())
    scores = torch.zeros_like(rollout.logits)
    losses = compute_glimpse_losses(
        replace(rollout, logits=scores),
        LABELS,
        value_baseline(),
        GlimpseLossOptions(reward="gain"),
        policy_std=POLICY_STD,
    )
    assert float(policy_diagnostics(rollout, losses, POLICY_STD)["explained_variance"]) == 0


def test_rollout_without_actions_has_only_std_and_entropy() -> None:
    model = build_model()
    images = torch.zeros(5, 1, 9, 11)
    rollout = model.rollout(images, locations=torch.zeros(5, 4, 2))
    assert set(diagnose(rollout)[0]) == {"std", "entropy"}


def test_gradient_norm_is_that_of_all_parameters() -> None:
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    layer(torch.ones(1, 3)).square().sum().backward()
    norms = gradient_norms({"layer": layer, "other": other})
    assert set(norms) == {"layer"}
    numbers = [float(x) for weight in layer.parameters() for x in weight.grad.flatten()]  # type: ignore[union-attr]
    assert float(norms["layer"]) == pytest.approx(sum(x * x for x in numbers) ** 0.5)
