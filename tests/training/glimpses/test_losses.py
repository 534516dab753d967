"""Rewards and losses of glimpse models: plain loops, and gradients by module."""

import itertools
import math
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


# ---------------------------------------------------------------- losses

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
@pytest.mark.parametrize("labels", [LABELS, torch.tensor([[5, 1], [2, IGNORE_LABEL]])])
@pytest.mark.parametrize("actions", [5, 6])
@pytest.mark.parametrize("normalize", [False, True])
def test_losses_match_plain_sums(labels: Tensor, actions: int, normalize: bool) -> None:
    """One rollout and one action at a time; 0.7 of the loss of every glimpse, 0.1 of the policy.

    Actions after a misread label count in neither loss, but the labels after it are classified.
    """
    rollout, baseline = random_rollout(t=6, actions=actions), value_baseline(informed=True)
    rollout.logits[0, 1, 2, 5] = 9.0  # it reads the first of two labels correctly
    options = {"normalize_advantages": normalize, "aux_loss_weight": 0.7, "policy_loss_weight": 0.1}
    losses = compute_glimpse_losses(
        rollout, labels, baseline, policy_std=STD, reward="gain", **options
    )
    rewards, counted, log_probs = (
        each[:, :, -actions:] for each in glimpse_rewards(rollout.logits, labels, "gain")
    )
    surplus = (rewards - baseline(rollout.policy_states, log_probs)) * counted
    advantages = surplus / surplus.std() if normalize else surplus
    policy, last, every = 0.0, [], []
    each_label = 6 // labels.view(2, -1).shape[1]
    for i, j in itertools.product(range(2), range(3)):
        for glimpse in range(6):
            label = int(labels.view(2, -1)[i, glimpse // each_label])
            if label != IGNORE_LABEL:
                every.append(-float(rollout.logits[i, j, glimpse].log_softmax(0)[label]))
                last += every[-1:] * ((glimpse + 1) % each_label == 0)
        for action, axis in itertools.product(range(actions), range(2)):
            place = (i, j, action, axis)
            off = float(rollout.policy_samples[place] - rollout.policy_means[place]) / 0.4
            density = -(off**2) / 2 - math.log(0.4 * math.sqrt(2 * math.pi))
            policy -= 0.1 * density * float(advantages[place[:3]]) / 6
    classification = sum(last) / len(last) + 0.7 * sum(every) / len(every)
    expected = (classification, policy, float(surplus.square().sum() / counted.sum()))
    found = tuple(map(float, (losses.classification, losses.policy, losses.baseline)))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert float(losses.total) == pytest.approx(sum(expected), rel=1e-5, abs=1e-5)
    if not normalize:
        torch.testing.assert_close(losses.rewards - losses.expected_rewards, losses.advantages)
    assert counted.all() == (labels.ndim == 1)


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
        rollout, torch.arange(5) % 3, baseline, policy_std=model.policy.std, aux_loss_weight=0.5
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
