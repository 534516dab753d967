"""Rewards of glimpses that read sequences of labels: against a plain loop."""

import itertools
import math
from typing import get_args

import pytest
import torch

from visattn.results.kinds import IGNORE_LABEL
from visattn.training.glimpses.losses import (
    RewardType,
    classification_rewards,
    label_per_glimpse,
    log_prob_before_glimpses,
    rewarded_actions,
    true_class_log_prob,
)

LABELS = torch.tensor([[3, 1, 4], [2, 0, IGNORE_LABEL]])  # two glimpses at each label


def rollouts() -> torch.Tensor:
    """Logits [b m t k]: rollout m of image 0 reads m labels correctly before its first error."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 4, 6, 5, generator=random, dtype=torch.float64)
    for image, rollout, label in itertools.product(range(2), range(4), range(3)):
        true = int(LABELS[image, label])
        if true != IGNORE_LABEL:
            correct = label < rollout or (label == 2 and rollout == 0)  # after an error, too
            logits[image, rollout, 2 * label + 1, true if correct else (true + 1) % 5] += 9
    return logits


@pytest.mark.parametrize("reward", get_args(RewardType))
@pytest.mark.parametrize("num_actions", [6, 5])
def test_rewards_of_sequences_match_a_loop(reward: RewardType, num_actions: int) -> None:
    logits = rollouts()
    rewards = classification_rewards(logits, LABELS, reward, num_actions=num_actions)
    rewarded = rewarded_actions(logits, LABELS, num_actions=num_actions)
    probabilities = logits.softmax(-1)
    for image, rollout in itertools.product(range(2), range(4)):
        true, alive = LABELS[image].tolist(), []
        for label in range(3):
            read = [int(logits[image, rollout, 2 * i + 1].argmax()) for i in range(label)]
            alive.append(true[label] != IGNORE_LABEL and read == true[:label])
        for action in range(num_actions):
            glimpse = action + 6 - num_actions
            expected = 0.0
            for label in range(glimpse // 2, 3):
                if alive[label]:
                    last = probabilities[image, rollout, 2 * label + 1]
                    expected += {
                        "correct": float(last.argmax() == true[label]),
                        "gain": float(last[true[label]]),
                    }[reward]
            if reward == "gain" and alive[glimpse // 2]:
                before = probabilities[image, rollout, glimpse - 1, true[glimpse // 2]]
                expected -= float(before) if glimpse % 2 else 1 / 5
            place = (image, rollout, action)
            assert bool(rewarded[place]) == alive[glimpse // 2], place
            assert float(rewards[place]) == pytest.approx(expected, abs=1e-12), place
            if not alive[glimpse // 2]:
                assert float(rewards[place]) == 0, place


def test_log_probabilities_follow_the_label_of_each_glimpse() -> None:
    logits = rollouts()
    targets = label_per_glimpse(LABELS, 6)
    assert targets.tolist() == [[3, 3, 1, 1, 4, 4], [2, 2, 0, 0, IGNORE_LABEL, IGNORE_LABEL]]
    after = true_class_log_prob(logits, LABELS)[..., 1:]
    before = log_prob_before_glimpses(logits, LABELS)
    assert (before[..., ::2] == -math.log(5)).all()  # of a new label nothing is known
    assert torch.equal(before[..., 1::2], after[..., ::2])
    assert not after[1, :, 4:].any()  # padding
    for glimpse in range(6):
        true = logits[0, :, glimpse].log_softmax(-1)[:, targets[0, glimpse]]
        torch.testing.assert_close(after[0, :, glimpse], true)


def test_a_single_label_may_have_an_axis_or_not() -> None:
    logits, labels = rollouts(), torch.tensor([3, 1])
    for reward in get_args(RewardType):
        plain = classification_rewards(logits, labels, reward)
        assert torch.equal(classification_rewards(logits, labels[:, None], reward), plain)
    assert rewarded_actions(logits, labels).all()


def test_glimpses_must_be_a_multiple_of_the_labels() -> None:
    with pytest.raises(ValueError, match="got 7 glimpses for 3 labels"):
        label_per_glimpse(LABELS, 7)
