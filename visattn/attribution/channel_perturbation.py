"""Class activation maps without gradients: Score-CAM and Ablation-CAM."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.attribution.layer_outputs import intercept_layer, layer_activations
from visattn.attribution.targets import Target
from visattn.attribution.variants import evaluate_target, variant_scorer, variants_per_batch
from visattn.functional.attribution.cam import ablation_cam, channel_masks, score_cam
from visattn.recording.feature_layers import Layer, resolve_feature_layer, to_grid
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel, FeatureLayer
from visattn.results.attention_map import resample_to_input

_MAX_VALUES = 2**25  # of all feature maps in a forward pass
_MAX_IMAGES = 32
_TOLERANCE = 1e-3  # of the scores: rounding in kernels for other batch sizes


def scorecam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
    max_channels: int | None = None,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Score-CAM: channels of a layer weighted by the score of the image seen through each.

    The model runs once per channel that is not constant, on the image multiplied by the channel;
    what it hides gets the mean color of the normalization.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain; of a class the logit.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        max_channels: Use only this many channels, those that vary most over each image (Faster
            Score-CAM); None for all.
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If there is no such layer, or `max_channels` is below 1.

    Source:
        Wang et al. 2020, arXiv:1910.01279; `max_channels`: tabayashi0117, Score-CAM repository,
        and `max_N` of tf-keras-vis.
    """
    feature_layer = resolve_feature_layer(explained, layer)
    activations, _ = layer_activations(explained, images, target, feature_layer)
    size, rows = (images.shape[2], images.shape[3]), torch.arange(len(images))
    varying = activations.amax((2, 3)) > activations.amin((2, 3))
    used = varying if max_channels is None else varying & _most_varying(activations, max_channels)
    channels = _selected_first(used)
    with frozen(explained.model), torch.no_grad():
        evaluate, count = variant_scorer(
            explained, images, target, internal_batch_size=internal_batch_size
        )
        scores = evaluate(torch.zeros_like(images)[None]).T.repeat(1, activations.shape[1])
        for chunk in channels.split(count):
            placed = resample_to_input(activations[rows, chunk], size, feature_layer.placement)
            masks = channel_masks(placed)
            scores[rows, chunk] = evaluate(images * masks[:, :, None])
    if max_channels is not None:
        scores = scores.masked_fill(~used, -torch.inf)
    return score_cam(activations, scores)


def ablationcam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
    internal_batch_size: int = 512,
) -> Float[Tensor, "b gy gx"]:
    """Ablation-CAM: channels of a layer weighted by the drop of the score without each.

    The part of the model behind the layer runs once per channel that is not 0 everywhere; of
    tokens only those on the grid are set to 0.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain; of a class the logit.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        internal_batch_size: Feature maps in one forward pass; fewer if they are large, and at most
            32 if the whole model must run for each.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV.
    """
    feature_layer = resolve_feature_layer(explained, layer)
    activations, called = layer_activations(explained, images, target, feature_layer)
    rows, channels = torch.arange(len(images)), _selected_first(activations.any(3).any(2))
    with frozen(explained.model), torch.no_grad():
        score = evaluate_target(explained, images[None], target)[0]
        without = score[:, None].repeat(1, activations.shape[1])
        evaluate, shared = _shared_trunk(explained, images, target, called, channels[:1])
        largest = max(1, _MAX_VALUES // activations[0].numel()) if shared else _MAX_IMAGES
        size = variants_per_batch(min(internal_batch_size, largest), images)
        for chunk in channels.split(size):
            without[rows, chunk] = evaluate(chunk)
    return ablation_cam(activations, score, without)


def _most_varying(activations: Float[Tensor, "b c y x"], count: int) -> Bool[Tensor, "b c"]:
    """Return which channels of each image have the highest variance."""
    if count < 1:
        raise ValueError(f"max_channels must be at least 1, got {count}")
    order = activations.flatten(2).var(2).argsort(dim=1, descending=True, stable=True)
    return order.argsort(dim=1) < count


def _selected_first(selected: Bool[Tensor, "b c"]) -> Int[Tensor, "m b"]:
    """Return the selected channels of each image; those of others fill the last rows."""
    order = selected.int().argsort(dim=1, descending=True, stable=True)
    return order[:, : int(selected.sum(1).max())].T


def _shared_trunk(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
    channels: Int[Tensor, "1 b"],
) -> tuple[Callable[[Int[Tensor, "m b"]], Float[Tensor, "m b"]], bool]:
    """Return the function that scores images without channels, and whether it repeats features.

    If possible each image runs up to the layer once for all channels, whose features are repeated
    there. Both ways must then give the same scores for the given channels, repeated once.
    """
    repeated = explained.info.output.key == "" and not explained.info.output.error

    def evaluate(channels: Tensor, *, repeat: bool) -> Tensor:
        def ablate(output: Tensor) -> Tensor:
            copies = output.repeat(len(channels), *[1] * (output.ndim - 1)) if repeat else output
            copies = copies.clone()
            grid = to_grid(copies, layer)  # a view
            grid[torch.arange(len(grid)), channels.flatten()] = 0
            return copies

        model = explained
        if repeat:
            model = replace(explained, forward=lambda variants: explained.forward(variants[:count]))
        with intercept_layer(explained, layer, ablate):
            return evaluate_target(model, images.expand(len(channels), *images.shape), target)

    count = len(images)
    if repeated and len(channels):
        pair = channels.repeat(2, 1)
        try:
            fast, slow = evaluate(pair, repeat=True), evaluate(pair, repeat=False)
        except Exception:  # noqa: BLE001 - a model may check the shapes between its layers
            return lambda channels: evaluate(channels, repeat=False), False
        repeated = torch.allclose(fast, slow, rtol=_TOLERANCE, atol=_TOLERANCE)
    return lambda channels: evaluate(channels, repeat=repeated), repeated
