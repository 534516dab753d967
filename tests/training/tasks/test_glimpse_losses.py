"""What is learned from rollouts: plain sums, who gets which gradient, and a toy that must learn."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from visattn.functional.reinforce import Reward
from visattn.models.ram.location_policy import Start
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.tasks.glimpse_losses import GlimpseLosses, ValueBaseline, losses_of_looks

SPREAD = torch.tensor(0.4, dtype=torch.float64)
LABELS = torch.tensor([5, 2])


def looks(
    b: int = 2, m: int = 3, t: int = 5, k: int = 7, d: int = 11, actions: int = 4
) -> GlimpseRollout:
    """Rollouts as they might be; one of each image is right in the end."""
    random = torch.Generator().manual_seed(4)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    samples, scores = some(b, m, actions, 2), some(b, m, t, k)
    for image, label in enumerate(LABELS[:b].tolist()):
        scores[image, 0, -1, label] = 3.0
    return GlimpseRollout(
        places=some(b, m, t, 2).clamp(-1, 1),
        scores=scores.requires_grad_(),
        states=some(b, m, t, d).requires_grad_(),
        means=(samples + some(b, m, actions, 2) / 3).requires_grad_(),
        samples=samples,
    )


def critic(*, informed: bool = False) -> ValueBaseline:
    torch.manual_seed(0)
    made = ValueBaseline(11, value=0.3, informed=informed)
    nn.init.normal_(made.reading.weight)
    return made.double()


def reading(told: ValueBaseline, state: Tensor, chance: float) -> float:
    """What a critic expects, from its weights."""
    if told.hidden is None:
        return float(told.reading.weight[0] @ state + told.reading.bias)
    known = torch.cat([state, torch.tensor([math.log(chance), chance], dtype=torch.float64)])
    hidden = (told.hidden.weight @ known + told.hidden.bias).clamp(min=0)
    return float(told.reading.weight[0] @ hidden + told.reading.bias)


# ---- the numbers


@torch.no_grad()
def plain(
    given: GlimpseRollout,
    told: ValueBaseline | float,
    *,
    others: bool,
    reward: str,
    normalize: bool,
    every: float,
) -> dict[str, float]:
    """All parts, one rollout and one action after the other."""
    b, m, t, k = given.scores.shape
    actions = given.means.shape[2]
    surplus, rewards, answers = torch.zeros(b, m, actions), torch.zeros(b, m, actions), []
    for i, j in itertools.product(range(b), range(m)):
        odds = [given.scores[i, j, step].double().softmax(0) for step in range(t)]
        true = [1 / k, *(float(odd[LABELS[i]]) for odd in odds)]
        answers.append(-math.log(true[t]) - every * sum(map(math.log, true[1:])) / t)
        for a in range(actions):
            first = t - actions  # the glimpse to which action 0 leads
            rewards[i, j, a] = {
                "correct": float(odds[-1].argmax() == LABELS[i]),
                "log_probability": math.log(true[t]),
                "gain": true[t] - true[first + a],
            }[reward]
            if isinstance(told, ValueBaseline):
                glimpse = first + a - 1
                state = given.states[i, j, glimpse] if glimpse >= 0 else torch.zeros(11).double()
                expected = reading(told, state, true[first + a])
            else:
                expected = told
            surplus[i, j, a] = rewards[i, j, a] - expected
    advantages = surplus.clone()
    if others:
        for i, j, a in itertools.product(range(b), range(m), range(actions)):
            rest = [surplus[i, other, a] for other in range(m) if other != j]
            advantages[i, j, a] = surplus[i, j, a] - sum(rest) / len(rest)
    if normalize:
        advantages = advantages / advantages.std()
    policy = 0.0
    for i, j, a, axis in itertools.product(range(b), range(m), range(actions), range(2)):
        off = float(given.samples[i, j, a, axis] - given.means[i, j, a, axis]) / 0.4
        density = -off * off / 2 - math.log(0.4 * math.sqrt(2 * math.pi))
        policy -= density * float(advantages[i, j, a]) / (b * m)
    learned = isinstance(told, ValueBaseline)
    return {
        "answer": sum(answers) / len(answers),
        "policy": policy,
        "baseline": float(surplus.square().mean()) if learned else 0.0,
    }


@torch.no_grad()
@pytest.mark.parametrize("actions", [4, 5])
@pytest.mark.parametrize("reward", ["correct", "log_probability", "gain"])
@pytest.mark.parametrize(("others", "normalize"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("baseline", ["none", "number", "learned", "informed"])
def test_every_part_is_a_plain_sum(
    actions: int, reward: Reward, others: bool, normalize: bool, baseline: str
) -> None:
    given = looks(actions=actions)
    told: Any = {"none": None, "number": torch.tensor(0.3), "learned": critic()}.get(
        baseline, critic(informed=True)
    )
    losses = losses_of_looks(
        given,
        LABELS,
        spread=SPREAD,
        baseline=told,
        others=others,
        reward=reward,
        normalize=normalize,
        every_glimpse=0.7,
    )
    same: Any = {"none": 0.0, "number": 0.3}.get(baseline, told)
    wanted = plain(given, same, others=others, reward=reward, normalize=normalize, every=0.7)
    for name, value in wanted.items():
        assert float(getattr(losses, name)) == pytest.approx(value, rel=1e-5, abs=1e-5), name
    assert float(losses.total) == pytest.approx(sum(wanted.values()), rel=1e-5, abs=1e-5)
    assert (
        losses.rewards.shape == losses.expected.shape == losses.advantages.shape == (2, 3, actions)
    )
    if not normalize:
        torch.testing.assert_close(losses.rewards - losses.expected, losses.advantages)


@torch.no_grad()
def test_entropy_and_smoothing_count_as_they_are_asked_to() -> None:
    given = looks()
    one, other, smooth = (
        losses_of_looks(given, LABELS, spread=SPREAD, entropy=entropy, smoothing=smoothing)
        for entropy, smoothing in ((0.0, 0.0), (0.25, 0.0), (0.0, 0.1))
    )
    entropy = math.log(2 * math.pi * math.e * 0.4**2)  # of two directions, in nats
    assert float(one.policy - other.policy) == pytest.approx(0.25 * entropy)
    last = given.scores[:, :, -1].log_softmax(-1)
    true = last.gather(-1, LABELS.view(2, 1, 1).expand(2, 3, 1)).squeeze(-1)
    assert float(smooth.answer) == pytest.approx(float(-(0.9 * true + 0.1 * last.mean(-1)).mean()))


def test_the_policy_s_weight_is_its_own() -> None:
    one, other = (
        losses_of_looks(looks(), LABELS, spread=SPREAD, baseline=critic(), policy_weight=weight)
        for weight in (1.0, 0.1)
    )
    torch.testing.assert_close(other.policy, one.policy / 10)
    assert torch.equal(other.answer, one.answer)
    assert torch.equal(other.baseline, one.baseline)


def test_advantages_of_the_rollouts_of_a_image_sum_to_nothing() -> None:
    losses = losses_of_looks(looks(), LABELS, spread=SPREAD, others=True, reward="gain")
    assert losses.advantages.sum(1).abs().max() < 1e-12


def test_one_rollout_has_no_others() -> None:
    with pytest.raises(ValueError, match="at least 2 samples per image"):
        losses_of_looks(looks(m=1), LABELS, spread=SPREAD, others=True)


def test_a_single_action_is_not_divided_by_its_spread() -> None:
    given = looks(b=1, m=1, t=2, actions=1)
    losses = losses_of_looks(given, LABELS[:1], spread=SPREAD, normalize=True, reward="gain")
    assert losses.advantages.isfinite().all()
    assert losses.total.isfinite()


def test_rewards_that_are_all_alike_teach_nothing_and_break_nothing() -> None:
    given = looks()
    scores = given.scores.detach().clone()
    scores[..., 0] = 99.0
    losses = losses_of_looks(
        replace(given, scores=scores), LABELS, spread=SPREAD, others=True, normalize=True
    )
    assert not losses.advantages.any()
    assert losses.total.isfinite()


def test_what_nobody_chose_teaches_the_policy_nothing() -> None:
    spread = torch.tensor(0.4, requires_grad=True)
    given = replace(
        looks(actions=0), scores=torch.zeros(2, 3, 5, 7), states=torch.zeros(2, 3, 5, 11)
    )
    given = replace(given, means=torch.zeros(2, 3, 0, 2), samples=torch.zeros(2, 3, 0, 2))
    told = ValueBaseline(11, value=0.1)
    losses = losses_of_looks(given, LABELS, spread=spread, baseline=told, entropy=0.3)
    assert not losses.policy.detach()
    assert not losses.baseline
    assert losses.rewards.shape == (2, 3, 0)
    losses.total.backward()
    assert not spread.grad
    assert told.reading.weight.grad is None


# ---- who gets which gradient


def small(start: Start = "random", **options: Any) -> RecurrentAttentionModel:
    torch.manual_seed(0)
    made = RecurrentAttentionModel(
        "abc", (9, 9), [0.5], [0.3], glimpse=3, glimpses=4, width=11, what=7, where=5,
        start=start, spread=0.4, **options,
    )  # fmt: skip
    nn.init.normal_(made.policy.mean.weight, std=0.3)
    return made


def images(count: int = 5) -> Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randint(256, (count, 1, 9, 9), dtype=torch.uint8, generator=random)


def slopes(loss: Tensor, parts: dict[str, nn.Module]) -> set[str]:
    """The parts that have a gradient other than 0."""
    for part in parts.values():
        part.zero_grad()
    loss.backward(retain_graph=True)
    return {
        name
        for name, part in parts.items()
        if any(one.grad is not None and bool(one.grad.any()) for one in part.parameters())
    }


@pytest.mark.parametrize("start", ["random", "learned"])
@pytest.mark.parametrize("reaching", [False, True])
@pytest.mark.parametrize("informed", [False, True])
def test_each_loss_reaches_its_own_parts_alone(
    start: Start, reaching: bool, informed: bool
) -> None:
    made, told = small(start, learn_spread=True), critic(informed=informed).float()
    rolled = made.roll_out(made.normalized(images()), rollouts=3, sampled=True, reaching=reaching)
    losses = losses_of_looks(
        rolled, torch.arange(5) % 3, spread=made.policy.spread, baseline=told, every_glimpse=0.5
    )
    parts = {
        "glimpse_net": made.glimpse_net,
        "memory": made.memory,
        "classifier": made.classifier,
        "policy": made.policy,
        "critic": told,
    }
    assert slopes(losses.answer, parts) == {"glimpse_net", "memory", "classifier"}
    reached = {"policy"} | ({"glimpse_net", "memory"} if reaching else set())
    assert slopes(losses.policy, parts) == reached
    assert made.policy.log_spread.grad
    assert (made.policy.first.grad is not None) == (start == "learned")
    assert slopes(losses.baseline, parts) == {"critic"}
    assert slopes(losses.total, parts) == set(parts)


def test_every_action_has_its_part_and_the_sample_none() -> None:
    given = looks()
    given = replace(given, samples=given.samples.clone().requires_grad_())
    losses = losses_of_looks(given, LABELS, spread=SPREAD, reward="log_probability")
    losses.policy.backward()
    assert given.samples.grad is None
    slope = given.means.grad
    assert slope is not None
    assert (slope != 0).all()  # each of t - 1 actions, of every rollout, in both directions
    wanted = (given.samples - given.means) / 0.4**2 * losses.advantages.unsqueeze(-1) / 6
    torch.testing.assert_close(-slope, wanted.detach())
    assert given.scores.grad is None
    assert given.states.grad is None


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(
    "baseline", [None, critic(), critic(informed=True)], ids=["none", "learned", "informed"]
)
def test_the_reward_of_a_image_moves_its_own_gradient_alone(
    baseline: ValueBaseline | None, others: bool
) -> None:
    """A baseline of one image must not be taken for that of another."""
    found = []
    for labels in (LABELS, torch.tensor([5, 3])):
        given = looks()
        losses = losses_of_looks(
            given,
            labels,
            spread=SPREAD,
            baseline=baseline,
            others=others,
            reward="log_probability",
        )
        losses.policy.backward()
        found.append(given.means.grad)
    assert torch.equal(found[0][0], found[1][0])
    assert (found[0][1] != found[1][1]).all()


@torch.no_grad()
@pytest.mark.parametrize("normalize", [False, True])
def test_other_order_of_images_same_losses(normalize: bool) -> None:
    given, order = looks(), torch.tensor([1, 0])
    other = GlimpseRollout(**{name: part[order] for name, part in vars(given).items()})
    one, two = (
        losses_of_looks(some, labels, spread=SPREAD, baseline=critic(), normalize=normalize)
        for some, labels in ((given, LABELS), (other, LABELS[order]))
    )
    assert float(one.total) == pytest.approx(float(two.total), rel=1e-12)
    torch.testing.assert_close(one.advantages[order], two.advantages)


@pytest.mark.parametrize("baseline", [None, torch.tensor(0.5), critic()], ids=str)
def test_copies_of_a_rollout_weigh_as_one(baseline: Any) -> None:
    one = looks(m=1)
    many = GlimpseRollout(**{name: part.expand(-1, 4, -1, -1) for name, part in vars(one).items()})
    few, all_ = (
        losses_of_looks(some, LABELS, spread=SPREAD, baseline=baseline, every_glimpse=1.0)
        for some in (one, many)
    )
    for name in ("answer", "policy", "baseline"):
        torch.testing.assert_close(getattr(few, name), getattr(all_, name), check_dtype=False)


# ---- baselines leave the expected gradient as it is


class Reading(ValueBaseline):
    """A baseline that says what the state says."""

    def __init__(self) -> None:
        super().__init__(2, value=0.0)

    def forward(self, states: Tensor, told: Tensor) -> Tensor:
        return states[..., 0]


def pushes(baseline: Any, *, peeking: bool = False) -> Tensor:
    """The gradient of each of many rollouts, for the means of two actions: [m 2 2].

    What is right is that the first place lies to the right and the second low: the reward of both.
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
    states = torch.zeros(1, m, 3, 2, dtype=torch.float64)
    states[:, :, 1:, 0] = samples[:, :, :, 0]  # after each action, where it led
    if peeking:
        states = torch.cat([states[:, :, 1:], states[:, :, :1]], 2)
    given = GlimpseRollout(samples.clamp(-1, 1)[:, :, [0, 0, 1]], scores, states, means, samples)
    losses = losses_of_looks(given, torch.tensor([1]), spread=SPREAD, baseline=baseline)
    (slope,) = torch.autograd.grad(losses.policy, means)
    return -slope[0] * m


def test_a_baseline_from_before_the_action_changes_no_expected_gradient() -> None:
    none = pushes(None)
    for baseline in (torch.tensor(0.5), Reading()):
        change = pushes(baseline) - none
        error = change.std(0) / len(change) ** 0.5
        assert (change.mean(0).abs() <= 3 * error).all()
    assert pushes(torch.tensor(0.2)).var(0).sum() < none.var(0).sum()


def test_a_baseline_that_knows_where_the_action_led_does() -> None:
    change = pushes(Reading(), peeking=True) - pushes(None)
    error = change.std(0) / len(change) ** 0.5
    assert (change.mean(0).abs() / error).max() > 20


# ---- a toy that must learn


def toy(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """One cell of four is bright or dark with the class, the others by chance.

    The cells lie in the corners of 12 x 12 pixels; a mark in the middle says which one tells, the
    first or the last.
    """
    cells = torch.randint(2, (count, 2, 2), generator=random)
    telling = 3 * torch.randint(2, (count,), generator=random)
    labels = cells.flatten(1).gather(1, telling[:, None])[:, 0]
    shown = torch.full((count, 1, 12, 12), 128, dtype=torch.uint8)
    for row, column in itertools.product(range(2), repeat=2):
        part = shown[:, 0, 8 * row : 8 * row + 4, 8 * column : 8 * column + 4]
        part.copy_((cells[:, row, column] * 255).to(torch.uint8).view(-1, 1, 1))
        mark = (telling == 2 * row + column).to(torch.uint8).view(-1, 1, 1) * 127
        shown[:, 0, 4 + 2 * row : 6 + 2 * row, 4 + 2 * column : 6 + 2 * column] += mark
    return shown, labels


def trained(steps: int, *, frozen: bool) -> float:
    """The share of new images that a model of two glimpses gets right."""
    torch.manual_seed(1)
    random = torch.Generator().manual_seed(1)
    made = RecurrentAttentionModel(
        "01", (12, 12), [0.5], [0.5], glimpse=4, glimpses=2, width=32, what=32, where=16,
        start="center", spread=0.6, core="gru",
    )  # fmt: skip
    made.policy.requires_grad_(not frozen)
    optimizer = Adam([one for one in made.parameters() if one.requires_grad], lr=1e-2)
    for _ in range(steps):
        shown, labels = toy(32, random)
        rolled = made.roll_out(made.normalized(shown), rollouts=8, sampled=True)
        losses: GlimpseLosses = losses_of_looks(
            rolled, labels, spread=made.policy.spread, others=True
        )
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    shown, labels = toy(1000, random)
    return float((made.eval()(shown).argmax(1) == labels).double().mean())


def test_where_to_look_is_learned() -> None:
    assert trained(120, frozen=False) > 0.95


def test_without_a_policy_that_learns_it_is_not() -> None:
    """Though it answers as well as one can from there."""
    assert trained(60, frozen=True) < 0.8
