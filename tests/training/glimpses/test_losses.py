"""Losses of glimpse models: against plain sums, gradients by module, and a toy problem."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.training.glimpses.losses import (
    GlimpseLosses,
    GlimpseLossOptions,
    RewardType,
    ValueBaseline,
    compute_glimpse_losses,
)

POLICY_STD = torch.tensor(0.4, dtype=torch.float64)
LABELS = torch.tensor([5, 2])


def random_rollout(
    b: int = 2, m: int = 3, t: int = 5, k: int = 7, d: int = 11, actions: int = 4
) -> GlimpseRollout:
    """Random rollouts; one rollout of each image predicts the class in the end."""
    random = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    samples, scores = normal(b, m, actions, 2), normal(b, m, t, k)
    for image, label in enumerate(LABELS[:b].tolist()):
        scores[image, 0, -1, label] = 3.0
    return GlimpseRollout(
        locations=normal(b, m, t, 2).clamp(-1, 1),
        logits=scores.requires_grad_(),
        policy_states=normal(b, m, actions, d).requires_grad_(),
        policy_means=(samples + normal(b, m, actions, 2) / 3).requires_grad_(),
        policy_samples=samples,
    )


def value_baseline(*, informed: bool = False) -> ValueBaseline:
    torch.manual_seed(0)
    baseline = ValueBaseline(11, initial_value=0.3, informed=informed)
    nn.init.normal_(baseline.output.weight)
    return baseline.double()


def baseline_value(module: ValueBaseline, state: Tensor, chance: float) -> float:
    """The output of a baseline, computed from its weights."""
    if module.hidden is None:
        return float(module.output.weight[0] @ state + module.output.bias)
    features = torch.cat([state, torch.tensor([math.log(chance), chance], dtype=torch.float64)])
    hidden = (module.hidden.weight @ features + module.hidden.bias).clamp(min=0)
    return float(module.output.weight[0] @ hidden + module.output.bias)


@torch.no_grad()
def reference_losses(
    rollout: GlimpseRollout,
    baseline: ValueBaseline,
    *,
    reward: str,
    normalize: bool,
    every: float,
) -> dict[str, float]:
    """All losses, one rollout and one action at a time."""
    b, m, t, k = rollout.logits.shape
    actions = rollout.policy_means.shape[2]
    surplus, rewards, classification = torch.zeros(b, m, actions), torch.zeros(b, m, actions), []
    for i, j in itertools.product(range(b), range(m)):
        probs = [rollout.logits[i, j, step].double().softmax(0) for step in range(t)]
        true = [1 / k, *(float(prob[LABELS[i]]) for prob in probs)]
        classification.append(-math.log(true[t]) - every * sum(map(math.log, true[1:])) / t)
        for a in range(actions):
            first = t - actions  # the glimpse after action 0
            rewards[i, j, a] = {
                "correct": float(probs[-1].argmax() == LABELS[i]),
                "gain": true[t] - true[first + a],
            }[reward]
            expected = baseline_value(baseline, rollout.policy_states[i, j, a], true[first + a])
            surplus[i, j, a] = rewards[i, j, a] - expected
    advantages = surplus.clone()
    if normalize:
        advantages = advantages / advantages.std()
    policy = 0.0
    for i, j, a, axis in itertools.product(range(b), range(m), range(actions), range(2)):
        off = (
            float(rollout.policy_samples[i, j, a, axis] - rollout.policy_means[i, j, a, axis]) / 0.4
        )
        density = -off * off / 2 - math.log(0.4 * math.sqrt(2 * math.pi))
        policy -= density * float(advantages[i, j, a]) / (b * m)
    return {
        "classification": sum(classification) / len(classification),
        "policy": policy,
        "baseline": float(surplus.square().mean()),
    }


@torch.no_grad()
@pytest.mark.parametrize("actions", [4, 5])
@pytest.mark.parametrize("reward", ["correct", "gain"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("informed", [False, True])
def test_losses_match_plain_sums(
    actions: int, reward: RewardType, normalize: bool, informed: bool
) -> None:
    rollout, baseline = random_rollout(actions=actions), value_baseline(informed=informed)
    losses = compute_glimpse_losses(
        rollout,
        LABELS,
        baseline,
        GlimpseLossOptions(reward=reward, normalize_advantages=normalize, aux_loss_weight=0.7),
        policy_std=POLICY_STD,
    )
    expected = reference_losses(rollout, baseline, reward=reward, normalize=normalize, every=0.7)
    for name, value in expected.items():
        assert float(getattr(losses, name)) == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert float(losses.total) == pytest.approx(sum(expected.values()), rel=1e-5, abs=1e-5)
    assert (
        losses.rewards.shape
        == losses.expected_rewards.shape
        == losses.advantages.shape
        == (2, 3, actions)
    )
    if not normalize:
        torch.testing.assert_close(losses.rewards - losses.expected_rewards, losses.advantages)


def test_policy_loss_weight_scales_the_policy_loss_only() -> None:
    full, scaled = (
        compute_glimpse_losses(
            random_rollout(),
            LABELS,
            value_baseline(),
            GlimpseLossOptions(policy_loss_weight=weight),
            policy_std=POLICY_STD,
        )
        for weight in (1.0, 0.1)
    )
    torch.testing.assert_close(scaled.policy, full.policy / 10)
    assert torch.equal(scaled.classification, full.classification)
    assert torch.equal(scaled.baseline, full.baseline)


def test_a_single_advantage_is_not_normalized() -> None:
    rollout = random_rollout(b=1, m=1, t=2, actions=1)
    losses = compute_glimpse_losses(
        rollout,
        LABELS[:1],
        value_baseline(),
        GlimpseLossOptions(normalize_advantages=True, reward="gain"),
        policy_std=POLICY_STD,
    )
    assert losses.advantages.isfinite().all()
    assert losses.total.isfinite()


def test_equal_advantages_have_finite_losses() -> None:
    rollout = random_rollout()
    scores = rollout.logits.detach().clone()
    scores[..., 0] = 99.0
    losses = compute_glimpse_losses(
        replace(rollout, logits=scores),
        LABELS,
        ValueBaseline(11, initial_value=0.0).double(),
        GlimpseLossOptions(normalize_advantages=True),
        policy_std=POLICY_STD,
    )
    assert not losses.advantages.any()
    assert losses.total.isfinite()


def test_rollouts_without_actions_have_no_policy_loss() -> None:
    rollout = replace(
        random_rollout(actions=0),
        logits=torch.zeros(2, 3, 5, 7),
        policy_states=torch.zeros(2, 3, 0, 11),
        policy_means=torch.zeros(2, 3, 0, 2),
        policy_samples=torch.zeros(2, 3, 0, 2),
    )
    module = ValueBaseline(11, initial_value=0.1)
    losses = compute_glimpse_losses(rollout, LABELS, module, policy_std=torch.tensor(0.4))
    assert not losses.policy.detach()
    assert not losses.baseline
    assert losses.rewards.shape == (2, 3, 0)


def small_model() -> RecurrentAttentionModel:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (9, 9), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(model.policy.mean.weight, std=0.3)
    return model


def images(count: int = 5) -> Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randint(256, (count, 1, 9, 9), dtype=torch.uint8, generator=random)


def trained_modules(loss: Tensor, modules: dict[str, nn.Module]) -> set[str]:
    """The modules with a gradient other than 0."""
    for module in modules.values():
        module.zero_grad()
    loss.backward(retain_graph=True)
    return {
        name
        for name, module in modules.items()
        if any(w.grad is not None and bool(w.grad.any()) for w in module.parameters())
    }


@pytest.mark.parametrize("backprop_policy", [False, True])
@pytest.mark.parametrize("informed", [False, True])
def test_each_loss_trains_its_own_modules(backprop_policy: bool, informed: bool) -> None:
    model, baseline = small_model(), value_baseline(informed=informed).float()
    rollout = model.rollout(
        model.normalize(images()),
        num_rollouts=3,
        sample=True,
        backprop_policy_to_core=backprop_policy,
    )
    losses = compute_glimpse_losses(
        rollout,
        torch.arange(5) % 3,
        baseline,
        GlimpseLossOptions(aux_loss_weight=0.5),
        policy_std=model.policy.std,
    )
    modules = {
        "glimpse_net": model.glimpse_net,
        "rnn": model.rnn,
        "classifier": model.classifier,
        "policy": model.policy,
        "value_baseline": baseline,
    }
    assert trained_modules(losses.classification, modules) == {"glimpse_net", "rnn", "classifier"}
    expected = {"policy"} | ({"glimpse_net", "rnn"} if backprop_policy else set())
    assert trained_modules(losses.policy, modules) == expected
    assert trained_modules(losses.baseline, modules) == {"value_baseline"}
    assert trained_modules(losses.total, modules) == set(modules)


def test_policy_gradient_of_each_action() -> None:
    rollout = random_rollout()
    rollout = replace(rollout, policy_samples=rollout.policy_samples.clone().requires_grad_())
    losses = compute_glimpse_losses(
        rollout, LABELS, value_baseline(), GlimpseLossOptions(reward="gain"), policy_std=POLICY_STD
    )
    losses.policy.backward()
    assert rollout.policy_samples.grad is None
    gradient = rollout.policy_means.grad
    assert gradient is not None
    assert (gradient != 0).all()  # all actions of all rollouts, in both dimensions
    expected = (
        (rollout.policy_samples - rollout.policy_means)
        / 0.4**2
        * losses.advantages.unsqueeze(-1)
        / 6
    )
    torch.testing.assert_close(-gradient, expected.detach())
    assert rollout.logits.grad is None
    assert rollout.policy_states.grad is None


def test_repeated_rollouts_have_the_losses_of_a_single_rollout() -> None:
    single = random_rollout(m=1)
    repeated = GlimpseRollout(
        **{name: part.expand(-1, 4, -1, -1) for name, part in vars(single).items()}
    )
    single_losses, repeated_losses = (
        compute_glimpse_losses(
            part,
            LABELS,
            value_baseline(),
            GlimpseLossOptions(aux_loss_weight=1.0),
            policy_std=POLICY_STD,
        )
        for part in (single, repeated)
    )
    for name in ("classification", "policy", "baseline"):
        torch.testing.assert_close(
            getattr(single_losses, name), getattr(repeated_losses, name), check_dtype=False
        )


class StateBaseline(ValueBaseline):
    """A baseline that returns the first number of the hidden state."""

    def __init__(self) -> None:
        super().__init__(2, initial_value=0.0)

    def forward(self, hidden_states: Tensor, log_probs: Tensor) -> Tensor:
        return hidden_states[..., 0]


def policy_gradients(baseline: ValueBaseline, *, biased: bool = False) -> Tensor:
    """The gradient of each of many rollouts with respect to the means of two actions: [m 2 2].

    The reward is 1 if the first location lies to the right and the second one low.
    """
    random = torch.Generator().manual_seed(6)
    m = 20_000
    off = torch.randn(1, m, 2, 2, generator=random, dtype=torch.float64)
    means = torch.tensor([[0.2, 0.1], [-0.3, 0.4]], dtype=torch.float64)
    means = means.expand(1, m, -1, -1).clone().requires_grad_()
    samples = (means + 0.4 * off).detach()
    right = (samples[:, :, 0, 0] > 0.3).double() * (samples[:, :, 1, 1] > 0.2)
    scores = torch.zeros(1, m, 3, 2, dtype=torch.float64)
    scores[:, :, -1, 1] = 2 * right - 1
    states = torch.zeros(1, m, 2, 2, dtype=torch.float64)  # before each action, the last location
    states[:, :, 1, 0] = samples[:, :, 0, 0]
    if biased:
        states[..., 0] = samples[..., 0]
    rollout = GlimpseRollout(samples.clamp(-1, 1)[:, :, [0, 0, 1]], scores, states, means, samples)
    losses = compute_glimpse_losses(rollout, torch.tensor([1]), baseline, policy_std=POLICY_STD)
    (gradient,) = torch.autograd.grad(losses.policy, means)
    return -gradient[0] * m


def test_baseline_from_before_the_action_keeps_the_expected_gradient() -> None:
    none, half, low = (ValueBaseline(2, initial_value=value).double() for value in (0.0, 0.5, 0.2))
    none = policy_gradients(none)
    for baseline in (half, StateBaseline()):
        change = policy_gradients(baseline) - none
        error = change.std(0) / len(change) ** 0.5
        assert (change.mean(0).abs() <= 3 * error).all()
    assert policy_gradients(low).var(0).sum() < none.var(0).sum()


def toy(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """One of four cells is bright or dark depending on the class, the others are random.

    The cells lie in the corners of 12 x 12 pixels; a mark in the center shows which cell has the
    class, the first or the last.
    """
    cells = torch.randint(2, (count, 2, 2), generator=random)
    informative = 3 * torch.randint(2, (count,), generator=random)
    labels = cells.flatten(1).gather(1, informative[:, None])[:, 0]
    pixels = torch.full((count, 1, 12, 12), 128, dtype=torch.uint8)
    for row, column in itertools.product(range(2), repeat=2):
        part = pixels[:, 0, 8 * row : 8 * row + 4, 8 * column : 8 * column + 4]
        part.copy_((cells[:, row, column] * 255).to(torch.uint8).view(-1, 1, 1))
        mark = (informative == 2 * row + column).to(torch.uint8).view(-1, 1, 1) * 127
        pixels[:, 0, 4 + 2 * row : 6 + 2 * row, 4 + 2 * column : 6 + 2 * column] += mark
    return pixels, labels


def test_policy_is_learned() -> None:
    """A model of two glimpses is right about new images: the second one is where it tells."""
    torch.manual_seed(1)
    random = torch.Generator().manual_seed(1)
    model = RecurrentAttentionModel(
        "01", (12, 12), [0.5], [0.5], glimpse_size=4, num_glimpses=2, hidden_size=32,
        what_dim=32, where_dim=16, policy_std=0.6, rnn_type="gru",
    )  # fmt: skip
    baseline = ValueBaseline(32, initial_value=0.5)
    optimizer = Adam([*model.parameters(), *baseline.parameters()], lr=1e-2)
    for _ in range(120):
        pixels, labels = toy(32, random)
        rollout = model.rollout(
            model.normalize(pixels),
            num_rollouts=8,
            sample=True,
            init_locations=torch.zeros(32, 2),  # the mark is in the center
        )
        losses: GlimpseLosses = compute_glimpse_losses(
            rollout,
            labels,
            baseline,
            GlimpseLossOptions(normalize_advantages=True),
            policy_std=model.policy.std,
        )
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    pixels, labels = toy(1000, random)
    center = torch.zeros(1000, 2)
    logits = model.rollout(model.normalize(pixels), init_locations=center).logits[:, 0, -1]
    assert float((logits.argmax(1) == labels).double().mean()) > 0.95


@pytest.mark.parametrize("informed", [False, True])
def test_untrained_baseline_returns_its_initial_value(informed: bool) -> None:
    random = torch.Generator().manual_seed(1)
    states, log_probs = (
        torch.randn(2, 3, 4, 5, generator=random),
        torch.randn(2, 3, 4, generator=random),
    )
    expected = ValueBaseline(5, initial_value=0.25, informed=informed)(states, log_probs)
    assert torch.equal(expected, torch.full((2, 3, 4), 0.25))


@pytest.mark.parametrize("informed", [False, True])
def test_baseline_has_no_gradient_for_its_inputs(informed: bool) -> None:
    baseline = ValueBaseline(5, initial_value=0.25, informed=informed)
    torch.nn.init.ones_(baseline.output.weight)
    states, log_probs = (
        torch.ones(2, 3, 4, 5, requires_grad=True),
        torch.ones(2, 3, 4).requires_grad_(),
    )
    baseline(states, log_probs).sum().backward()
    assert states.grad is None
    assert log_probs.grad is None
    assert all(weight.grad is not None for weight in baseline.parameters())


def test_only_an_informed_baseline_depends_on_the_true_class() -> None:
    states = torch.zeros(1, 1, 2, 5)
    log_probs = torch.tensor([[[math.log(0.1), math.log(0.9)]]])
    for informed in (False, True):
        torch.manual_seed(0)
        baseline = ValueBaseline(5, initial_value=0.0, informed=informed)
        torch.nn.init.normal_(baseline.output.weight)
        uncertain, certain = baseline(states, log_probs).flatten().tolist()
        assert (uncertain != certain) == informed
