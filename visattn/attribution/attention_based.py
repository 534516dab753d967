"""Attention among tokens as one map: of a layer, through all layers, weighed by gradients."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from visattn.attribution.attention_rows import (
    LayerWeights,
    asking_rows,
    chosen_layer,
    one_grid_refusal,
    pooled_rows,
    weights_and_gradients,
    weights_of,
)
from visattn.attribution.targets import Target
from visattn.functional.attribution.rollout import (
    Fusion,
    fused_heads,
    relevance_rows,
    rising_means,
    rising_weights,
    rollout_rows,
    without_weakest,
)
from visattn.recording.model_info import ExplainedModel

Heads = Fusion | int | Sequence[int]


def attention(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
    heads: Heads = "mean",
    queries: str | Sequence[int] | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Return the attention of one layer, of those tokens that the scores are made of.

    Args:
        subject: The model.
        images: Normalized.
        target: Only noted: attention knows no class.
        layer: Which of the card's layers, by number or by the path of the module.
        heads: The `mean`, `max` or `min` of all heads, or the mean of some, by number.
        queries: Whose rows, as `record` takes them; by default those that the model pools: of the
            class token, of it and the distillation token, or of the patches.

    Raises:
        ValueError: If there is no such layer, head or token.
    """
    number = chosen_layer(subject.card, layer)
    wanted = asking_rows(subject.card, number) if queries is None else queries
    [shown] = weights_of(subject, images, target, [number], queries=wanted)
    rows = _fused(shown.weights, heads).mean(1)
    return shown.on_grid(rows)


def rollout(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    heads: Heads = "mean",
    discard: float = 0.0,
    start_layer: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Return the attention through all layers of those tokens that the scores are made of.

    Args:
        subject: The model.
        images: Normalized.
        target: Only noted: attention knows no class.
        heads: The `mean`, `max` or `min` of all heads, or the mean of some, by number.
        discard: Share of each layer's weights, the weakest, that are left out.
        start_layer: The first layer that counts.
        residual: Share of the skip connection in each layer.

    Raises:
        ValueError: If the model's tokens do not keep one grid, or a number is out of range.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928.
    """
    numbers = _layers_from(subject, start_layer, "rollout")
    shown = weights_of(subject, images, target, numbers, queries="all")
    carried = [
        without_weakest(_fused(one.weights, heads), discard, kept=len(one.roles)) for one in shown
    ]
    return _through(subject, shown, carried, partial(rollout_rows, residual=residual))


def gradient_attention(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the attention of one layer times its gradient, where that is positive, over all heads.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        layer: Which of the card's layers, by number or by the path of the module.

    Raises:
        ValueError: If there is no such layer, or the target does not depend on it.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5, of one layer.
    """
    number = chosen_layer(subject.card, layer)
    [(shown, gradients)] = weights_and_gradients(subject, images, target, [number])
    weighed = rising_weights(shown.weights, gradients)
    return shown.on_grid(pooled_rows(subject.card, shown, weighed).mean(1))


def gradient_rollout(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    discard: float = 0.0,
    start_layer: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Return rollout of attention times gradient, each layer's weights with its own gradient.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        discard: Share of each layer's products, the weakest, that are left out.
        start_layer: The first layer that counts.
        residual: Share of the skip connection in each layer.

    Raises:
        ValueError: If the model's tokens do not keep one grid, or a number is out of range.

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers", with the layers paired.
    """
    numbers = _layers_from(subject, start_layer, "gradient_rollout")
    found = weights_and_gradients(subject, images, target, numbers)
    carried = [
        without_weakest(rising_means(one.weights, gradients), discard, kept=len(one.roles))
        for one, gradients in found
    ]
    shown = [one for one, _ in found]
    return _through(subject, shown, carried, partial(rollout_rows, residual=residual))


def relevance(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
) -> Float[Tensor, "b gy gx"]:
    """Return how much each patch counts, through all layers, by attention times gradient.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        start_layer: The first layer that counts; later ones give sharper maps.

    Raises:
        ValueError: If the model's tokens do not keep one grid, or there is no such layer.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 5 and 6. Deviation: what tokens are
        to themselves, the identity to begin with, is left out: it is the same for all patches.
    """
    numbers = _layers_from(subject, start_layer, "relevance")
    found = weights_and_gradients(subject, images, target, numbers)
    shown = [one for one, _ in found]

    def added(layers: list[Tensor], rows: Tensor) -> Tensor:
        return relevance_rows(layers, rows) - (0 if shown[-1].lone else rows)

    carried = [rising_weights(one.weights, gradients) for one, gradients in found]
    return _through(subject, shown, carried, added)


def _layers_from(subject: ExplainedModel, start: int, method: str) -> list[int]:
    """Return the numbers of the layers that count, of a model through which one can go."""
    count = len(subject.card.layers)
    if reason := one_grid_refusal(subject.card):
        raise ValueError(f"{method} does not fit {subject.card.name}: {reason}")
    if not -count <= start < count:
        raise ValueError(
            f"start_layer counts the {count} layers of {subject.card.name} from 0, got {start}"
        )
    return list(range(start % count, count))


def _through(
    subject: ExplainedModel,
    shown: Sequence[LayerWeights],
    carried: Sequence[Tensor],
    combined: Callable[[list[Tensor], Tensor], Tensor],
) -> Float[Tensor, "b gy gx"]:
    """Return what reaches the input from what the scores are made of.

    Args:
        subject: The model.
        shown: Its layers.
        carried: The matrix of each.
        combined: The rows that all matrices make of those to begin with.
    """
    first, last, layers = shown[0], shown[-1], list(carried)
    most = max(len(one.roles) for one in shown if not one.lone or one is first)
    if last.lone:
        # below 0 where the pool has a token of its own
        missing = most - len(last.roles)
        rows = pad(layers.pop(), (missing, 0))
    else:
        identity = torch.eye(layers[-1].shape[1]).to(layers[-1]).expand_as(layers[-1])
        rows = pooled_rows(subject.card, last, identity).mean(1, keepdim=True)
    # tokens that join later, such as a class token, take nothing from anywhere before that
    joined = [most - len(one.roles) for one in shown]
    layers = [
        pad(layer, (count, 0, count, 0)) for layer, count in zip(layers, joined, strict=False)
    ]
    return first.on_grid(combined(layers, rows).mean(1)[:, joined[0] :])


def _fused(weights: Float[Tensor, "b h n m"], heads: Heads) -> Float[Tensor, "b n m"]:
    if isinstance(heads, str):
        return fused_heads(weights, heads)
    numbers, count = [heads] if isinstance(heads, int) else list(heads), weights.shape[1]
    if not numbers or any(not -count <= number < count for number in numbers):
        raise ValueError(
            f"heads are mean, max, min or numbers; there are {count}, counted from 0, got {heads}"
        )
    return weights[:, numbers].mean(1)
