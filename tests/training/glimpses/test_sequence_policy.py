"""REINFORCE for sequences of labels, through the losses of the library, against enumeration.

Three places, two labels, two glimpses at each: four actions, so 81 paths. The policy is a table of
logits for each action and the place before it; what the classifier says is a table over the places
seen so far. `compute_glimpse_losses` gets all paths at once, each weighted by its probability.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.ram import GlimpseRollout
from visattn.results.kinds import IGNORE_LABEL
from visattn.training.glimpses import losses as glimpse_losses
from visattn.training.glimpses.losses import (
    GlimpseLossOptions,
    RewardType,
    ValueBaseline,
    compute_glimpse_losses,
)

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


def states() -> Tensor:
    """What the baseline knows before each action: the places so far."""
    known = torch.zeros(81, 4, 5, dtype=torch.float64)
    for action in range(1, 4):
        known[:, action, :action] = PATHS[:, :action].double()
    return known


def library_gradient(
    policy: Tensor,
    labels: list[int],
    monkeypatch: pytest.MonkeyPatch,
    options: GlimpseLossOptions,
    baseline: ValueBaseline,
) -> Tensor:
    """The exact expectation of the estimator's gradient, from the library's policy loss."""
    rows = torch.arange(81)[:, None]
    log_probs = path_log_probs(policy)[rows]  # [b m 4]: an image for each rollout
    weights = log_probs.detach().sum((1, 2)).exp() * len(rows)
    nothing = torch.zeros(*rows.shape, 4, 2, dtype=torch.float64)
    rollout = GlimpseRollout(nothing, path_logits()[rows], states()[rows], nothing, nothing)
    monkeypatch.setattr(
        glimpse_losses, "gaussian_log_prob", lambda *_: log_probs * weights.view(-1, 1, 1)
    )
    losses = compute_glimpse_losses(
        rollout,
        torch.tensor([labels]).expand(len(rows), -1),
        baseline,
        options,
        policy_std=torch.tensor(1.0),
    )
    (gradient,) = torch.autograd.grad(losses.policy, policy)
    return -gradient


def value_baseline(*, informed: bool) -> ValueBaseline:
    torch.manual_seed(2)
    baseline = ValueBaseline(5, initial_value=0.3, informed=informed)
    nn.init.normal_(baseline.output.weight)
    return baseline.double()


BASELINES: dict[str, Callable[[], ValueBaseline]] = {
    "constant": lambda: ValueBaseline(5, initial_value=0.7).double(),
    "learned": lambda: value_baseline(informed=False),
    "informed": lambda: value_baseline(informed=True),
}


@pytest.mark.parametrize("reward", ["correct", "gain"])
@pytest.mark.parametrize("labels", [[1, 2], [0, IGNORE_LABEL]], ids=["two", "padded"])
def test_expected_gradient_is_exact_with_each_baseline(
    reward: RewardType, labels: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = table(4, 4, 3, seed=9).requires_grad_()
    (exact,) = torch.autograd.grad(expected_reward(policy, labels, reward), policy)
    assert exact.abs().max() > 0.01
    for name, baseline in BASELINES.items():
        options = GlimpseLossOptions(reward=reward)
        gradient = library_gradient(policy, labels, monkeypatch, options, baseline())
        difference = float((gradient - exact).abs().max())
        assert difference < 1e-12, (name, difference)


def test_actions_after_an_error_have_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the library's loss, with baselines that are not 0 there."""
    wrong = path_logits()[:, 1].argmax(-1) != 1
    assert 0 < wrong.sum() < 81
    for name, baseline in BASELINES.items():
        log_probs = path_log_probs(table(4, 4, 3, seed=9))[:, None].requires_grad_()
        nothing = torch.zeros(81, 1, 4, 2, dtype=torch.float64)
        monkeypatch.setattr(glimpse_losses, "gaussian_log_prob", lambda *_, p=log_probs: p)
        losses = compute_glimpse_losses(
            GlimpseRollout(nothing, path_logits()[:, None], states()[:, None], nothing, nothing),
            torch.tensor([[1, 2]]).expand(81, -1),
            baseline(),
            policy_std=torch.tensor(1.0),
        )
        (gradient,) = torch.autograd.grad(losses.policy, log_probs)
        assert not gradient[wrong, :, 2:].any(), name
        assert not losses.rewards[wrong, :, 2:].any(), name
        assert gradient[~wrong].any(), name
        assert gradient[wrong, :, :2].all(), name


def test_classification_trains_every_label_and_no_padding() -> None:
    """Also those after an error."""
    logits = path_logits()[:5, None].clone().requires_grad_()
    labels = torch.tensor([[1, 2], [0, IGNORE_LABEL], [2, 1], [0, 0], [1, IGNORE_LABEL]])
    path, nothing = torch.zeros(5, 1, 4, 2), torch.zeros(5, 1, 0, 2, dtype=torch.float64)
    states = torch.zeros(5, 1, 0, 5, dtype=torch.float64)
    rollout = GlimpseRollout(path, logits, states, nothing, nothing)
    losses = compute_glimpse_losses(
        rollout,
        labels,
        value_baseline(informed=False),
        GlimpseLossOptions(aux_loss_weight=0.5),
        policy_std=torch.tensor(1.0),
    )
    last, every = [], []
    for image, glimpse in itertools.product(range(5), range(4)):
        true = int(labels[image, glimpse // 2])
        if true != IGNORE_LABEL:
            surprise = -float(logits.detach()[image, 0, glimpse].log_softmax(-1)[true])
            every.append(surprise)
            if glimpse % 2:
                last.append(surprise)
    assert (len(last), len(every)) == (8, 16)
    expected = sum(last) / 8 + 0.5 * sum(every) / 16
    assert float(losses.classification.detach()) == pytest.approx(expected, rel=1e-12)
    losses.classification.backward()
    assert logits.grad is not None
    assert logits.grad[labels[:, 1] != IGNORE_LABEL, 0, 2:].all()
    assert not logits.grad[labels[:, 1] == IGNORE_LABEL, 0, 2:].any()
