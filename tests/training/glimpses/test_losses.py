"""Rewards and losses of glimpse models: plain loops, all paths enumerated, gradients by module."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.glimpses import losses as glimpse_losses
from visattn.training.glimpses.losses import (
    RewardType,
    ValueBaseline,
    compute_glimpse_losses,
    glimpse_rewards,
)

# ---------------------------------------------------------------- rewards of sequences

SEQUENCES = torch.tensor([[3, 1, 4], [2, 0, IGNORE_LABEL]])  # two glimpses at each label


def rollouts() -> Tensor:
    """Logits [b m t k]: rollout m of image 0 reads m labels correctly before its first error."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 4, 6, 5, generator=random, dtype=torch.float64)
    for image, rollout, label in itertools.product(range(2), range(4), range(3)):
        true = int(SEQUENCES[image, label])
        if true != IGNORE_LABEL:
            correct = label < rollout or (rollout == 0 and label > 0)  # after an error, too
            logits[image, rollout, 2 * label + 1, true if correct else (true + 1) % 5] += 9
    return logits


@pytest.mark.parametrize("reward", get_args(RewardType))
def test_rewards_of_sequences_match_a_loop(reward: RewardType) -> None:
    logits = rollouts()
    rewards, counted, log_probs = glimpse_rewards(logits, SEQUENCES, reward)
    probabilities = logits.softmax(-1)
    for image, rollout in itertools.product(range(2), range(4)):
        true, alive = SEQUENCES[image].tolist(), []
        for label in range(3):
            read = [int(logits[image, rollout, 2 * i + 1].argmax()) for i in range(label)]
            alive.append(true[label] != IGNORE_LABEL and read == true[:label])
        for glimpse in range(6):
            place, expected = (image, rollout, glimpse), 0.0
            for label in range(glimpse // 2, 3):
                if alive[label]:
                    last = probabilities[image, rollout, 2 * label + 1]
                    correct, gain = float(last.argmax() == true[label]), float(last[true[label]])
                    expected += correct if reward == "correct" else gain
            assert bool(counted[place]) == alive[glimpse // 2], place
            if alive[glimpse // 2]:
                before = probabilities[image, rollout, glimpse - 1, true[glimpse // 2]]
                chance = float(before) if glimpse % 2 else 1 / 5
                assert float(log_probs[place].exp()) == pytest.approx(chance, abs=1e-12), place
                expected -= chance if reward == "gain" else 0.0
            assert float(rewards[place]) == pytest.approx(expected, abs=1e-12), place


# ---------------------------------------------------------------- losses of single labels

STD = torch.tensor(0.4, dtype=torch.float64)
LABELS = torch.tensor([5, 2])


def random_rollout(b: int = 2, m: int = 3, t: int = 5, actions: int = 4) -> GlimpseRollout:
    """Random rollouts; one rollout of each image predicts the class in the end."""
    random = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    samples, scores = normal(b, m, actions, 2), normal(b, m, t, 7)
    for image, label in enumerate(LABELS[:b].tolist()):
        scores[image, 0, -1, label] = 3.0
    means = samples + normal(b, m, actions, 2) / 3
    return GlimpseRollout(
        normal(b, m, t, 2).clamp(-1, 1), scores, normal(b, m, actions, 11), means, samples
    )


def value_baseline(size: int = 11, *, informed: bool = False) -> ValueBaseline:
    torch.manual_seed(0)
    baseline = ValueBaseline(size, initial_value=0.3, informed=informed)
    nn.init.normal_(baseline.output.weight)
    return baseline.double()


def losses_of(
    rollout: GlimpseRollout, baseline: ValueBaseline | None = None, **options: Any
) -> glimpse_losses.GlimpseLosses:
    """Return the losses of rollouts with a single label per image."""
    labels = LABELS[: len(rollout.logits)]
    return compute_glimpse_losses(
        rollout, labels, baseline or value_baseline(), policy_std=STD, **options
    )


@torch.no_grad()
@pytest.mark.parametrize("actions", [4, 5])
@pytest.mark.parametrize("normalize", [False, True])
def test_losses_match_plain_sums(actions: int, normalize: bool) -> None:
    """One rollout and one action at a time; 0.7 of the loss of every glimpse, 0.1 of the policy."""
    rollout, baseline = random_rollout(actions=actions), value_baseline(informed=True)
    options = {"normalize_advantages": normalize, "aux_loss_weight": 0.7, "policy_loss_weight": 0.1}
    losses = losses_of(rollout, baseline, reward="gain", **options)
    rewards, _, log_probs = (
        each[:, :, -actions:] for each in glimpse_rewards(rollout.logits, LABELS, "gain")
    )
    surplus = rewards - baseline(rollout.policy_states, log_probs)
    advantages = surplus / surplus.std() if normalize else surplus
    policy, classification = 0.0, 0.0
    for i, j in itertools.product(range(2), range(3)):
        logs = [float(step.log_softmax(0)[LABELS[i]]) for step in rollout.logits[i, j]]
        classification -= (logs[-1] + 0.7 * sum(logs) / 5) / 6
        for action, axis in itertools.product(range(actions), range(2)):
            place = (i, j, action, axis)
            off = float(rollout.policy_samples[place] - rollout.policy_means[place]) / 0.4
            density = -(off**2) / 2 - math.log(0.4 * math.sqrt(2 * math.pi))
            policy -= 0.1 * density * float(advantages[place[:3]]) / 6
    expected = (classification, policy, float(surplus.square().mean()))
    found = tuple(map(float, (losses.classification, losses.policy, losses.baseline)))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert float(losses.total) == pytest.approx(sum(expected), rel=1e-5, abs=1e-5)
    if not normalize:
        torch.testing.assert_close(losses.rewards - losses.expected_rewards, losses.advantages)


@torch.no_grad()
def test_losses_are_finite_where_nothing_can_be_learned() -> None:
    """A single advantage, equal ones, and rollouts without an action."""
    single = losses_of(random_rollout(1, 1, 2, 1), normalize_advantages=True, reward="gain")
    assert single.total.isfinite()
    rollout = random_rollout()
    scores = rollout.logits.clone()
    scores[..., 0] = 99.0
    nothing = ValueBaseline(11, initial_value=0.0).double()
    equal = losses_of(replace(rollout, logits=scores), nothing, normalize_advantages=True)
    assert not equal.advantages.any()
    assert equal.total.isfinite()
    none = losses_of(random_rollout(actions=0))
    assert (float(none.policy), float(none.baseline)) == (0, 0)
    assert none.rewards.shape == (2, 3, 0)


@pytest.mark.parametrize("backprop_policy", [False, True])
@pytest.mark.parametrize("informed", [False, True])
def test_each_loss_trains_its_own_modules(backprop_policy: bool, informed: bool) -> None:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (9, 9), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(model.policy.mean.weight, std=0.3)
    images = torch.randint(256, (5, 1, 9, 9), dtype=torch.uint8)
    rollout = model.rollout(
        model.normalize(images),
        num_rollouts=3,
        sample=True,
        backprop_policy_to_core=backprop_policy,
    )
    baseline = value_baseline(informed=informed).float()
    losses = compute_glimpse_losses(
        rollout,
        torch.arange(5) % 3,
        baseline,
        policy_std=model.policy.std,
        aux_loss_weight=0.5,
    )
    names = ("glimpse_net", "rnn", "classifier", "policy")
    modules = {name: getattr(model, name) for name in names} | {"baseline": baseline}

    def trained(loss: Tensor) -> set[str]:
        for module in modules.values():
            module.zero_grad()
        loss.backward(retain_graph=True)
        return {
            name
            for name, module in modules.items()
            if any(w.grad is not None and bool(w.grad.any()) for w in module.parameters())
        }

    assert trained(losses.classification) == {"glimpse_net", "rnn", "classifier"}
    core = {"glimpse_net", "rnn"} if backprop_policy else set[str]()
    assert trained(losses.policy) == {"policy"} | core
    assert trained(losses.baseline) == {"baseline"}
    assert trained(losses.total) == set(modules)


def test_a_baseline_begins_at_its_value_and_only_an_informed_one_knows_the_class() -> None:
    states, log_probs = torch.zeros(2, 5), torch.tensor([0.1, 0.9]).log()
    for informed in (False, True):
        baseline = ValueBaseline(5, initial_value=0.25, informed=informed)
        assert baseline(states + 3, log_probs).tolist() == [0.25, 0.25]
        uncertain, certain = value_baseline(5, informed=informed)(
            states.double(), log_probs.double()
        ).tolist()
        assert (uncertain != certain) == informed


# ---------------------------------------------------------------- all paths of a small problem
#
# Three places, two labels, two glimpses at each: four actions, so 81 paths. The policy is a table
# of logits for each action and the place before it; what the classifier says is a table over the
# places seen so far. `compute_glimpse_losses` gets all paths at once.

PATHS = torch.tensor(list(itertools.product(range(3), repeat=4)))  # [81 4]


def table(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def path_logits() -> Tensor:
    """Class logits after each glimpse of each path, [81 4 3]; they depend on the places so far."""
    tables = [table(*[3] * (glimpse + 1), 3, seed=glimpse) * 2 for glimpse in range(4)]
    steps = [tables[glimpse][tuple(PATHS[:, : glimpse + 1].unbind(1))] for glimpse in range(4)]
    return torch.stack(steps, 1)


def path_log_probs(policy: Tensor) -> Tensor:
    """Log-probability of each action of each path, [81 4]; `policy` is [4 4 3]."""
    before = torch.cat([torch.full((81, 1), 3), PATHS[:, :-1]], 1)  # 3: no place yet
    logits = policy[torch.arange(4), before]
    return logits.log_softmax(-1).gather(-1, PATHS.unsqueeze(-1)).squeeze(-1)


def expected_reward(policy: Tensor, labels: list[int], reward: RewardType) -> Tensor:
    """The objective, path by path: each label counts unless an earlier one was misread."""
    total = torch.zeros((), dtype=torch.float64)
    for logits, log_probs in zip(path_logits(), path_log_probs(policy), strict=True):
        value = 0.0
        for label, true in enumerate(labels):
            last = logits[2 * label + 1].softmax(-1)
            if true == IGNORE_LABEL:
                break
            correct = int(last.argmax()) == true
            value += float(last[true]) if reward == "gain" else float(correct)
            if not correct:
                break
        total = total + log_probs.sum().exp() * value
    return total


def losses_of_paths(
    labels: list[int], log_probs: Tensor, baseline: ValueBaseline, patch: Any, **options: Any
) -> glimpse_losses.GlimpseLosses:
    """Return the losses of the paths, each an image; `log_probs`, [81 1 4], are their actions'."""
    known = torch.zeros(81, 1, 4, 5, dtype=torch.float64)  # before each action: the places so far
    for action in range(1, 4):
        known[:, 0, action, :action] = PATHS[:, :action].double()
    nothing = torch.zeros(81, 1, 4, 2, dtype=torch.float64)
    patch.setattr(glimpse_losses, "gaussian_log_prob", lambda *_: log_probs)
    return compute_glimpse_losses(
        GlimpseRollout(nothing, path_logits()[:, None], known, nothing, nothing),
        torch.tensor([labels]).expand(81, -1),
        baseline,
        policy_std=torch.tensor(1.0),
        **options,
    )


BASELINES: dict[str, Callable[[], ValueBaseline]] = {
    "constant": lambda: ValueBaseline(5, initial_value=0.7).double(),
    "learned": lambda: value_baseline(5),
    "informed": lambda: value_baseline(5, informed=True),
}


@pytest.mark.parametrize("reward", ["correct", "gain"])
@pytest.mark.parametrize("labels", [[1, 2], [0, IGNORE_LABEL]], ids=["two", "padded"])
def test_the_expected_gradient_is_exact_with_each_baseline(
    reward: RewardType, labels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is a mean over paths; each counts by its probability times their number."""
    policy = table(4, 4, 3, seed=9).requires_grad_()
    (exact,) = torch.autograd.grad(expected_reward(policy, labels, reward), policy)
    assert exact.abs().max() > 0.01
    for name, baseline in BASELINES.items():
        log_probs = path_log_probs(policy)[:, None]
        weights = 81 * log_probs.detach().sum((1, 2)).exp()
        weighted = log_probs * weights.view(-1, 1, 1)
        losses = losses_of_paths(labels, weighted, baseline(), monkeypatch, reward=reward)
        (gradient,) = torch.autograd.grad(losses.policy, policy)
        difference = float((-gradient - exact).abs().max())
        assert difference < 1e-12, (name, difference)


def test_actions_after_an_error_have_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With baselines that are not 0 there, as in the mean of many paths one may not see."""
    wrong = path_logits()[:, 1].argmax(-1) != 1
    assert 0 < wrong.sum() < 81
    for name, baseline in BASELINES.items():
        log_probs = path_log_probs(table(4, 4, 3, seed=9))[:, None].requires_grad_()
        losses = losses_of_paths([1, 2], log_probs, baseline(), monkeypatch)
        (gradient,) = torch.autograd.grad(losses.policy, log_probs)
        assert not gradient[wrong, :, 2:].any(), name
        assert gradient[~wrong].any(), name
        assert gradient[wrong, :, :2].all(), name


def test_classification_trains_every_label_and_no_padding() -> None:
    """Also those after an error."""
    logits = path_logits()[:5, None].clone().requires_grad_()
    labels = torch.tensor([[1, 2], [0, IGNORE_LABEL], [2, 1], [0, 0], [1, IGNORE_LABEL]])
    none, states = torch.zeros(5, 1, 0, 2).double(), torch.zeros(5, 1, 0, 5).double()
    rollout = GlimpseRollout(torch.zeros(5, 1, 4, 2), logits, states, none, none)
    losses = compute_glimpse_losses(
        rollout, labels, value_baseline(5), policy_std=STD, aux_loss_weight=0.5
    )
    last, every = [], []
    for image, glimpse in itertools.product(range(5), range(4)):
        true = int(labels[image, glimpse // 2])
        if true != IGNORE_LABEL:
            every.append(-float(logits.detach()[image, 0, glimpse].log_softmax(-1)[true]))
            last += every[-1:] * (glimpse % 2)
    expected = sum(last) / 8 + 0.5 * sum(every) / 16
    assert float(losses.classification.detach()) == pytest.approx(expected, rel=1e-12)
    losses.classification.backward()
    assert logits.grad is not None
    padded = labels[:, 1] == IGNORE_LABEL
    assert logits.grad[~padded, 0, 2:].all()
    assert not logits.grad[padded, 0, 2:].any()
