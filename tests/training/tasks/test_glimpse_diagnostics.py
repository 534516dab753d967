"""What is watched while a policy learns, against slower ways to the same numbers."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.functional.reinforce import gaussian_log_density, rollout_loss
from visattn.models.ram.location_policy import Start
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.tasks.glimpse_diagnostics import (
    gradient_norms,
    gradient_signal,
    policy_figures,
)
from visattn.training.tasks.glimpse_losses import GlimpseLosses, ValueBaseline, losses_of_looks

SPREAD = torch.tensor(0.4)


def critic() -> ValueBaseline:
    torch.manual_seed(0)
    made = ValueBaseline(11, value=0.3)
    nn.init.normal_(made.reading.weight)
    return made


LABELS = torch.tensor([0, 2, 1, 0, 2])


def model(start: Start = "random") -> RecurrentAttentionModel:
    torch.manual_seed(0)
    made = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse=3, glimpses=4, width=11, what=7, where=5,
        start=start, spread=0.4,
    )  # fmt: skip
    nn.init.normal_(made.policy.mean.weight, std=0.3)
    return made


def rolled(made: RecurrentAttentionModel, rollouts: int = 3) -> GlimpseRollout:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (5, 1, 9, 11), dtype=torch.uint8, generator=random)
    torch.manual_seed(1)
    return made.roll_out(made.normalized(images), rollouts=rollouts, sampled=True)


def told(looks: GlimpseRollout, **options: Any) -> tuple[dict[str, Tensor], GlimpseLosses]:
    losses = losses_of_looks(looks, LABELS, spread=SPREAD, reward="log_probability", **options)
    return policy_figures(looks, losses, SPREAD), losses


def test_the_figures_are_what_they_are_called() -> None:
    looks = rolled(model())
    figures, losses = told(looks, others=True)
    assert set(figures) == {
        "reward", "advantage", "advantage_spread", "baseline_explains", "spread", "entropy",
        "clamped", "places_differ", "signal",
    }  # fmt: skip
    flat = [float(one) for one in losses.rewards.flatten()]
    assert float(figures["reward"]) == pytest.approx(sum(flat) / len(flat))
    gained = [float(one) for one in losses.advantages.flatten()]
    mean = sum(gained) / len(gained)
    variance = sum((one - mean) ** 2 for one in gained) / len(gained)
    assert float(figures["advantage"]) == pytest.approx(mean, abs=1e-6)
    assert float(figures["advantage_spread"]) == pytest.approx(variance**0.5)
    whole = torch.tensor(flat, dtype=torch.float64).var(correction=0)
    assert float(figures["baseline_explains"]) == pytest.approx(
        1 - variance / float(whole), abs=1e-4
    )
    assert float(figures["entropy"]) == pytest.approx(math.log(2 * math.pi * math.e * 0.4**2))
    beyond = [max(abs(x), abs(y)) > 1 for x, y in looks.samples.reshape(-1, 2).tolist()]
    assert 0 < sum(beyond) < len(beyond)
    assert float(figures["clamped"]) == pytest.approx(sum(beyond) / len(beyond))
    assert all(not value.requires_grad for value in figures.values() if value is not SPREAD)


def test_a_policy_that_looks_at_all_images_alike_is_seen() -> None:
    made = model("center")
    looks = rolled(made)
    assert float(told(looks)[0]["places_differ"]) > 0.01
    nn.init.zeros_(made.policy.mean.weight)
    assert float(told(rolled(made))[0]["places_differ"]) == pytest.approx(0, abs=1e-7)


def test_rewards_that_are_all_alike_leave_nothing_to_explain() -> None:
    """Whatever a baseline expected: its share of nothing must not be infinite."""
    looks = rolled(model())
    scores = torch.zeros_like(looks.scores)
    for baseline in (None, critic()):
        losses = losses_of_looks(
            replace(looks, scores=scores),
            LABELS,
            spread=SPREAD,
            reward="log_probability",
            baseline=baseline,
        )
        assert float(policy_figures(looks, losses, SPREAD)["baseline_explains"]) == 0


def test_a_path_that_nobody_chose_has_no_figures_of_a_policy() -> None:
    made = model()
    shown = torch.zeros(5, 1, 9, 11)
    looks = made.roll_out(shown, path=torch.zeros(5, 4, 2))
    assert set(told(looks)[0]) == {"spread", "entropy"}


def test_one_rollout_has_no_signal_to_compare() -> None:
    assert "signal" not in told(rolled(model(), 1))[0]


@pytest.mark.parametrize("start", ["random", "learned"])
def test_the_signal_is_that_of_the_gradients_of_single_rollouts(start: Start) -> None:
    made = model(start)
    looks = rolled(made)
    advantages = (looks.samples - looks.means).sum(-1).detach()  # what went far was good
    each = []
    for rollout in range(3):
        likely = gaussian_log_density(looks.samples[:, rollout], looks.means[:, rollout], SPREAD)
        loss = rollout_loss(likely, advantages[:, rollout])
        (slope,) = torch.autograd.grad(loss, made.policy.mean.weight, retain_graph=True)
        each.append(slope.flatten().double())
    slopes = torch.stack(each)
    noise = float(slopes.var(0).sum())
    signal = (float(slopes.mean(0).square().sum()) - noise / 3) / noise
    assert signal > 0.1
    found = float(gradient_signal(looks, advantages, SPREAD))
    assert found == pytest.approx(signal, rel=1e-3)


def test_a_signal_is_never_below_nothing() -> None:
    looks = rolled(model())
    signals = [
        float(gradient_signal(looks, torch.randn(5, 3, 3, generator=random), SPREAD))
        for random in map(torch.Generator().manual_seed, range(20))
    ]
    assert min(signals) == 0


def test_rollouts_that_agree_are_all_signal_and_noise_is_none() -> None:
    looks = rolled(model())
    same = GlimpseRollout(
        **{name: part[:, :1].expand(-1, 3, -1, -1) for name, part in vars(looks).items()}
    )
    ones = torch.ones(same.means.shape[:3])
    assert gradient_signal(same, ones, SPREAD) > 1e6
    assert gradient_signal(same, torch.zeros_like(ones), SPREAD) == 0


def test_gradients_are_as_long_as_all_their_numbers_together() -> None:
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    layer(torch.ones(1, 3)).square().sum().backward()
    norms = gradient_norms({"layer": layer, "other": other, "none": None})
    assert set(norms) == {"layer"}
    numbers = [float(x) for one in layer.parameters() for x in one.grad.flatten()]  # type: ignore[union-attr]
    assert float(norms["layer"]) == pytest.approx(sum(x * x for x in numbers) ** 0.5)
