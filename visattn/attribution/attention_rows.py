"""Recorded attention of a model, and which of its rows the scores are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.target_scores import target_values
from visattn.attribution.targets import Target
from visattn.recording.attention_map import AttentionMap
from visattn.recording.frozen_model import asked, frozen
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.recorder import Recording, record

_READ = {"class": ("class",), "distilled": ("class", "distillation")}


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Attention of one layer.

    Args:
        weights: With the columns of the tokens before the grid; of a pool one row.
        roles: Of those tokens.
        grid: Rows and columns of the others.
        lone: Whether it is a pool, with a query of its own.
    """

    weights: Float[Tensor, "b h n m"]
    roles: tuple[str, ...]
    grid: tuple[int, int]
    lone: bool = False

    def on_grid(self, rows: Float[Tensor, "b m"]) -> Float[Tensor, "b gy gx"]:
        """Return numbers of tokens as a map, without those before the grid."""
        return rows[:, len(self.roles) :].unflatten(1, self.grid)


def chosen_layer(card: ModelInfo, layer: int | str) -> int:
    """Return the number of a layer of attention.

    Args:
        card: Of the model.
        layer: Its number, -1 for the last, or the path of the module or of the block around it.

    Raises:
        ValueError: If there is none, or there are several in that block.
    """
    _check_tokens(card)
    count = len(card.layers)
    if isinstance(layer, int) and -count <= layer < count:
        return layer % count
    sites = [one.site for one in card.layers]
    if layer in sites:
        return sites.index(str(layer))
    inside = [site for site in sites if site.startswith(f"{layer}.")]
    if len(inside) == 1:
        return sites.index(inside[0])
    hint = f", of which it holds {len(inside)}: {', '.join(inside[:3])}" if inside else ""
    raise ValueError(
        f"{card.name} has {count} layers of attention, {sites[0]} to {sites[-1]}; "
        f"got {layer!r}{hint}"
    )


def asking_rows(card: ModelInfo, number: int) -> str | tuple[int, ...]:
    """Return whose rows of a layer the scores are made of, as `record` takes them.

    Args:
        card: Of the model.
        number: Of the layer.

    Example:
        >>> from visattn.recording.model_info import AttentionLayer
        >>> layer = AttentionLayer("blocks.0.attn", (3, 5), 2, ("class", "distillation"))
        >>> card = ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "distilled", (layer,))
        >>> asking_rows(card, 0)
        (0, 1)
    """
    read = _READ.get(card.pooling, ())
    rows = tuple(at for at, role in enumerate(card.layers[number].roles) if role in read)
    return rows or "patches"


def one_grid_refusal(card: ModelInfo) -> str:
    """Return why one cannot go through all layers of a model; "" if one can.

    Args:
        card: Of the model.

    Example:
        >>> one_grid_refusal(ModelInfo("net", "timm", (6, 10), (0.5,), (0.5,), "none"))
        'it has no attention among tokens'
    """
    if card.refusal or not card.layers:
        return card.refusal or "it has no attention among tokens"
    grids = dict.fromkeys(grid for one in card.layers for grid in (one.grid, one.keys or one.grid))
    if len(grids) > 1:
        listed = ", ".join(f"{rows} x {columns}" for rows, columns in grids)
        return (
            f"its layers have several grids of tokens ({listed}), so that their attention cannot "
            "be multiplied; show single layers by attention"
        )
    if card.refused:
        return f"{card.refused[0][0]}, which is on the way, cannot be shown: {card.refused[0][1]}"
    if any(one.lone for one in card.layers[:-1]):
        return "several layers have a single query, and not only the last one that pools"
    for one, following in pairwise(one for one in card.layers if not one.lone):
        if not _joined(one.roles, following.roles):
            return (
                f"the tokens before its grid change from {', '.join(one.roles) or 'none'} at "
                f"{one.site} to {', '.join(following.roles) or 'none'} at {following.site}"
            )
    return ""


def _joined(roles: tuple[str, ...], later: tuple[str, ...]) -> bool:
    """Whether the tokens before a grid are those of an earlier layer, or others joined in front."""
    return roles == later or not roles or later[-len(roles) :] == roles


def pooled_rows(
    card: ModelInfo, shown: LayerWeights, matrix: Float[Tensor, "b n m"]
) -> Float[Tensor, "b r m"]:
    """Return those rows of a layer that the scores are made of.

    Args:
        card: Of the model.
        shown: The layer.
        matrix: All its rows.
    """
    if shown.lone:
        return matrix
    read = _READ.get(card.pooling, ())
    rows = [at for at, role in enumerate(shown.roles) if role in read]
    return matrix[:, rows] if rows else matrix[:, len(shown.roles) :]


def weights_of(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    numbers: Sequence[int],
    *,
    queries: str | Sequence[int],
) -> list[LayerWeights]:
    """Return the attention of some layers.

    Args:
        subject: The model.
        images: Normalized.
        target: Sees the scores.
        numbers: Of the layers.
        queries: Whose rows.

    Raises:
        ValueError: If the attention of this model cannot be shown, or a layer runs several times.
    """
    _check_tokens(subject.card)
    with (
        frozen(subject.model),
        torch.no_grad(),
        record(subject.model, queries=queries, layers=_sites(subject, numbers)) as seen,
    ):
        target(subject.forward(images))
    _check_once(subject.card, seen, numbers)
    return [_layer(subject.card, *one) for one in zip(seen.maps, seen.weights, strict=True)]


def weights_and_gradients(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    numbers: Sequence[int],
) -> list[tuple[LayerWeights, Float[Tensor, "b h n m"]]]:
    """Return the attention of some layers, each with the target's gradient with respect to it.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        numbers: Of the layers.

    Raises:
        ValueError: If the attention of this model cannot be shown, a layer runs several times, or
            the target does not depend on one.
    """
    _check_tokens(subject.card)
    with frozen(subject.model):
        with record(subject.model, layers=_sites(subject, numbers), differentiable=True) as seen:
            values = target_values(subject, asked(images), target)
        _check_once(subject.card, seen, numbers)
        gradients = torch.autograd.grad(values.sum(), seen.weights, allow_unused=True)
    for one, gradient in zip(seen.maps, gradients, strict=True):
        if gradient is None:
            raise ValueError(
                f"the target does not depend on the attention at {one.site}; choose another layer "
                "or start_layer"
            )
    found: list[tuple[LayerWeights, Tensor]] = []
    for one, weights, gradient in zip(seen.maps, seen.weights, gradients, strict=True):
        layer = _layer(subject.card, one, weights.detach())
        found.append((layer, gradient.view_as(layer.weights)))
    return found


def _sites(subject: ExplainedModel, numbers: Sequence[int]) -> list[str]:
    return [subject.card.layers[number].site for number in numbers]


def _check_once(card: ModelInfo, seen: Recording, numbers: Sequence[int]) -> None:
    if len(seen.maps) != len(numbers):
        told = ", ".join(one.site for one in seen.maps)
        raise ValueError(
            f"each of {len(numbers)} layers of {card.name} must run once, but {len(seen.maps)} "
            f"maps were made: {told}; record the model and combine them yourself"
        )


def _layer(card: ModelInfo, shown: AttentionMap, weights: Tensor) -> LayerWeights:
    """Return what was recorded, of a pool with an axis for its one query."""
    grid = (shown.values.shape[-2], shown.values.shape[-1])
    whole = weights.unsqueeze(2) if weights.ndim == 3 else weights
    lone = any(one.lone for one in card.layers if one.site == shown.site)
    return LayerWeights(whole, tuple(shown.made.get("before", ())), grid, lone)


def _check_tokens(card: ModelInfo) -> None:
    if card.refusal or not card.layers:
        reason = card.refusal or "it has no attention among tokens"
        raise ValueError(f"the attention of {card.name} cannot be shown: {reason}")
