"""Relevance against plain loops, and what ties it to rollout."""

import torch
from torch import Tensor

from visattn.functional.attribution.rollout import (
    attention_rollout,
    gradient_rollout_weights,
    positive_grad_times_attention,
    propagate_relevance,
)

B, H, N, L = 2, 3, 7, 5


def drawn(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    numbers = torch.randn(2, L, B, H, N, N, generator=random, dtype=torch.float64)
    return list(numbers[0].softmax(-1)), list(numbers[1])


def test_weighed_weights_are_those_of_the_loops() -> None:
    weights, gradients = drawn(0)
    inside, outside = torch.zeros(2, B, N, N, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            for m in range(N):
                products = [
                    float(weights[0][b, h, n, m] * gradients[0][b, h, n, m]) for h in (0, 1, 2)
                ]
                inside[b, n, m] = sum(max(one, 0) for one in products) / H
                outside[b, n, m] = max(sum(products) / H, 0)
    torch.testing.assert_close(positive_grad_times_attention(weights[0], gradients[0]), inside)
    torch.testing.assert_close(gradient_rollout_weights(weights[0], gradients[0]), outside)


def test_relevance_grows_layer_by_layer() -> None:
    layers = [positive_grad_times_attention(*one) for one in zip(*drawn(1), strict=True)]
    expected = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    for layer in layers:
        expected = expected + layer @ expected
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    torch.testing.assert_close(propagate_relevance(layers, identity), expected)
    torch.testing.assert_close(propagate_relevance(layers, identity[:, 3:4]), expected[:, 3:4])


def test_with_gradients_of_one_it_is_rollout() -> None:
    weights, _ = drawn(2)
    layers = [positive_grad_times_attention(one, torch.ones_like(one)) for one in weights]
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    torch.testing.assert_close(
        propagate_relevance(layers, identity) / 2**L, attention_rollout(layers, identity)
    )


def test_a_layer_without_gradient_lets_everything_pass() -> None:
    weights, gradients = drawn(3)
    for layer in range(L):
        some = [g * (at != layer) for at, g in enumerate(gradients)]
        weighed = [gradient_rollout_weights(*one) for one in zip(weights, some, strict=True)]
        identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
        without = weighed[:layer] + weighed[layer + 1 :]
        assert torch.equal(attention_rollout([weighed[layer]], identity), identity)
        torch.testing.assert_close(
            attention_rollout(weighed, identity), attention_rollout(without, identity)
        )
