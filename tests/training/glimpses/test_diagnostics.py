"""Diagnostics of a policy, against slower computations of the same numbers."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.functional.reinforce import gaussian_log_prob, reinforce_loss
from visattn.models.glimpses.glimpse_model import GlimpseRollout, InitLocation
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.training.glimpses.losses import (
    GlimpseLosses,
    GlimpseLossOptions,
    compute_glimpse_losses,
)
from visattn.training.glimpses.task import (
    gradient_norms,
    gradient_signal_to_noise,
    policy_diagnostics,
)
from visattn.training.value_baseline import ValueBaseline

POLICY_STD = torch.tensor(0.4)


def value_baseline() -> ValueBaseline:
    torch.manual_seed(0)
    baseline = ValueBaseline(11, initial_value=0.3)
    nn.init.normal_(baseline.output.weight)
    return baseline


LABELS = torch.tensor([0, 2, 1, 0, 2])


def build_model(start: InitLocation = "random") -> RecurrentAttentionModel:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, init_location=start, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(model.policy.mean.weight, std=0.3)
    return model


def sample_rollout(model: RecurrentAttentionModel, num_rollouts: int = 3) -> GlimpseRollout:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (5, 1, 9, 11), dtype=torch.uint8, generator=random)
    torch.manual_seed(1)
    return model.rollout(model.normalize(images), num_rollouts=num_rollouts, sample=True)


def diagnose(rollout: GlimpseRollout, **options: Any) -> tuple[dict[str, Tensor], GlimpseLosses]:
    losses = compute_glimpse_losses(
        rollout,
        LABELS,
        GlimpseLossOptions(reward="log_probability", **options),
        policy_std=POLICY_STD,
    )
    return policy_diagnostics(rollout, losses, POLICY_STD), losses


def test_diagnostics_match_their_definitions() -> None:
    rollout = sample_rollout(build_model())
    diagnostics, losses = diagnose(rollout, leave_one_out_baseline=True)
    assert set(diagnostics) == {
        "reward", "advantage_mean", "advantage_std", "explained_variance", "std", "entropy",
        "clamped_fraction", "mean_std", "gradient_snr",
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
    for baseline in (None, value_baseline()):
        losses = compute_glimpse_losses(
            replace(rollout, logits=scores),
            LABELS,
            GlimpseLossOptions(reward="log_probability"),
            policy_std=POLICY_STD,
            baseline=baseline,
        )
        assert float(policy_diagnostics(rollout, losses, POLICY_STD)["explained_variance"]) == 0


def test_rollout_without_actions_has_only_std_and_entropy() -> None:
    model = build_model()
    images = torch.zeros(5, 1, 9, 11)
    rollout = model.rollout(images, locations=torch.zeros(5, 4, 2))
    assert set(diagnose(rollout)[0]) == {"std", "entropy"}


def test_single_rollout_has_no_gradient_snr() -> None:
    assert "gradient_snr" not in diagnose(sample_rollout(build_model(), 1))[0]


@pytest.mark.parametrize("start", ["random", "learned"])
def test_gradient_snr_matches_the_gradients_of_single_rollouts(start: InitLocation) -> None:
    model = build_model(start)
    rollout = sample_rollout(model)
    residuals = rollout.policy_samples - rollout.policy_means
    advantages = residuals.sum(-1).detach()  # correlated with the score function
    gradients = []
    for index in range(3):
        log_probs = gaussian_log_prob(
            rollout.policy_samples[:, index], rollout.policy_means[:, index], POLICY_STD
        )
        loss = reinforce_loss(log_probs, advantages[:, index])
        (gradient,) = torch.autograd.grad(loss, model.policy.mean.weight, retain_graph=True)
        gradients.append(gradient.flatten().double())
    stacked = torch.stack(gradients)
    noise = float(stacked.var(0).sum())
    signal = (float(stacked.mean(0).square().sum()) - noise / 3) / noise
    assert signal > 0.1
    snr = float(gradient_signal_to_noise(rollout, advantages, POLICY_STD))
    assert snr == pytest.approx(signal, rel=1e-3)


def test_gradient_snr_of_equal_rollouts() -> None:
    rollout = sample_rollout(build_model())
    same = GlimpseRollout(
        **{name: part[:, :1].expand(-1, 3, -1, -1) for name, part in vars(rollout).items()}
    )
    ones = torch.ones(same.policy_means.shape[:3])
    assert gradient_signal_to_noise(same, ones, POLICY_STD) > 1e6
    assert gradient_signal_to_noise(same, torch.zeros_like(ones), POLICY_STD) == 0


def test_gradient_norm_is_that_of_all_parameters() -> None:
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    layer(torch.ones(1, 3)).square().sum().backward()
    norms = gradient_norms({"layer": layer, "other": other, "none": None})
    assert set(norms) == {"layer"}
    numbers = [float(x) for weight in layer.parameters() for x in weight.grad.flatten()]  # type: ignore[union-attr]
    assert float(norms["layer"]) == pytest.approx(sum(x * x for x in numbers) ** 0.5)
