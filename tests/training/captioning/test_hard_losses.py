"""Hard attention against enumeration: three places, three words, all rollouts."""

import itertools
from typing import Any

import torch
from torch import Tensor

from visattn.functional.reinforce import (
    categorical_entropy,
    categorical_log_prob,
    rewards_to_go,
)
from visattn.training.captioning.hard import HardAttentionLosses, hard_attention_losses

PATHS = torch.tensor(list(itertools.product(range(3), repeat=3)))  # the places of three words
PAIRS = torch.tensor(list(itertools.product(range(len(PATHS)), repeat=2)))  # two rollouts
WORDS = torch.tensor([2, 0, 1])
ENTROPY_WEIGHT = 0.3


def parameters() -> tuple[Tensor, Tensor]:
    """Scores of the places by word and previous place, and of the words by all places so far."""
    random = torch.Generator().manual_seed(5)
    shapes = (3, 4, 3), (3, 3, 3)
    return tuple(
        torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()
        for shape in shapes
    )  # pyright: ignore[reportReturnType]


def path_values(places: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of words and places, and entropies, of every path."""
    previous = torch.cat((torch.full_like(PATHS[:, :1], 3), PATHS[:, :-1]), 1)
    place_logits = places[torch.arange(3), previous]
    word_logits = words[torch.arange(3), PATHS].cumsum(1)  # a word depends on earlier places too
    return (
        categorical_log_prob(word_logits, WORDS.expand(len(PATHS), 3)),
        categorical_log_prob(place_logits, PATHS),
        categorical_entropy(place_logits.softmax(-1)),
    )


def gradient(objective: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    return torch.cat(
        [part.flatten() for part in torch.autograd.grad(objective, weights, retain_graph=True)]
    )


def exact_gradient(entropy_weight: float) -> Tensor:
    """The gradient of minus the bound and the expected entropy, summed over the words."""
    weights = parameters()
    words, places, entropies = path_values(*weights)
    objective = (words + entropy_weight * entropies).sum(-1)
    return -gradient((places.sum(-1).exp() * objective).sum(), weights)


def expected_gradient(entropy_weight: float) -> Tensor:
    """The expectation of the gradient of the library's loss over all pairs of rollouts."""
    weights = parameters()
    values = path_values(*weights)
    chances = values[1].detach().sum(-1).exp()[PAIRS].prod(-1)  # of each pair; the losses are means
    words, places, entropies = (
        scaled_gradient(value[PAIRS], chances[:, None, None] * len(PAIRS)) for value in values
    )
    rewards = rewards_to_go(words.detach())
    losses = hard_attention_losses(
        -words, rewards, places, entropies, entropy_weight=entropy_weight
    )
    return gradient(losses.total, weights)


def scaled_gradient(values: Tensor, factor: Tensor) -> Tensor:
    """Return the values, with their gradient multiplied by a factor."""
    return values.detach() + (values - values.detach()) * factor


def test_expected_gradient_of_all_rollouts_is_exact() -> None:
    exact = exact_gradient(ENTROPY_WEIGHT)
    expected = expected_gradient(ENTROPY_WEIGHT)
    assert float((expected - exact).norm() / exact.norm()) < 1e-12


def losses_of(
    rewards: Tensor, logits: Tensor, places: Tensor, **options: Any
) -> HardAttentionLosses:
    return hard_attention_losses(
        torch.zeros_like(rewards),
        rewards,
        categorical_log_prob(logits, places),
        categorical_entropy(logits.softmax(-1)),
        **options,
    )


def test_equal_rewards_give_no_gradient_and_the_entropy_its_closed_form() -> None:
    random = torch.Generator().manual_seed(7)
    logits = torch.randn(2, 3, 1, 5, generator=random, dtype=torch.float64).requires_grad_()
    places = torch.randint(5, (2, 3, 1), generator=random)
    rewards = torch.tensor([[[-2.0]], [[-3.0]]], dtype=torch.float64).expand(2, 3, 1)
    [policy] = torch.autograd.grad(losses_of(rewards, logits, places).total, [logits])
    assert float(policy.abs().max()) < 1e-15
    losses = losses_of(rewards, logits, places, entropy_weight=0.7)
    [total] = torch.autograd.grad(losses.total, [logits])
    probabilities = logits.detach().softmax(-1)
    logs = probabilities.log()
    entropy = -(probabilities * logs).sum(-1, keepdim=True)
    closed = 0.7 / 6 * probabilities * (logs + entropy)  # of the negative entropy, by the mean of 6
    torch.testing.assert_close(total, closed, rtol=1e-12, atol=1e-15)
