"""Class activation maps without gradients: Score-CAM and Ablation-CAM."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.attribution.cam import weighted_sum
from visattn.attribution.dense_targets import BoundTarget
from visattn.attribution.layer_outputs import intercept_layer, layer_activations
from visattn.attribution.perturbation import evaluate_target, variant_scorer, variants_per_batch
from visattn.attribution.registry import method
from visattn.attribution.targets import ClassTarget, Target
from visattn.functional.numerics import at_least_float32
from visattn.recording.feature_layers import Layer, resolve_feature_layer, to_grid
from visattn.recording.frozen import frozen
from visattn.recording.model_info import FeatureLayer
from visattn.recording.subject import Subject
from visattn.results.attention_map import resample_to_input

_MAX_VALUES = 2**25  # of all feature maps in a forward pass
_MAX_IMAGES = 32
_TOLERANCE = 1e-3  # of the scores: rounding in kernels for other batch sizes


@method("scorecam", title="Score-CAM", paper="arXiv:1910.01279", needs="features")
def scorecam(
    explained: Subject,
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
    size = (images.shape[2], images.shape[3])
    rows = torch.arange(len(images))
    varying = activations.amax((2, 3)) > activations.amin((2, 3))
    used = varying if max_channels is None else varying & _most_varying(activations, max_channels)
    channels = _selected_first(used)
    with frozen(explained.model), torch.no_grad():
        evaluate, count, _ = variant_scorer(
            explained, images, target, internal_batch_size=internal_batch_size
        )
        # A constant channel is not run: its mask of zeros leaves the mean color, which is 0 here.
        # Others that are not run are left out below.
        scores = evaluate(torch.zeros_like(images)[None]).T.repeat(1, activations.shape[1])
        for chunk in channels.split(count):
            placed = resample_to_input(activations[rows, chunk], size, feature_layer.margin)
            masks = channel_masks(placed)
            scores[rows, chunk] = evaluate(images * masks[:, :, None])
    if max_channels is not None:
        scores = scores.masked_fill(~used, -torch.inf)
    return score_cam(activations, scores)


@method("ablationcam", title="Ablation-CAM", paper="Desai and Ramaswamy 2020", needs="features")
def ablationcam(
    explained: Subject,
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
    rows = torch.arange(len(images))
    channels = _selected_first(activations.any(3).any(2))
    with frozen(explained.model), torch.no_grad():
        score = evaluate_target(explained, images[None], target)[0]
        without = score[:, None].repeat(1, activations.shape[1])
        evaluate, shared = _shared_trunk(explained, images, target, called, channels[:1])
        largest = max(1, _MAX_VALUES // activations[0].numel()) if shared else _MAX_IMAGES
        size = variants_per_batch(min(internal_batch_size, largest), images)
        of_parts = explained.info.output.key or explained.info.output.error
        if of_parts and not isinstance(target, ClassTarget | BoundTarget):
            size = 1  # a function gets the whole output of each variant, one run after the other
        for chunk in channels.split(size):
            without[rows, chunk] = evaluate(chunk)
    return ablation_cam(activations, score, without)


def score_cam(
    activations: Float[Tensor, "b c y x"], scores: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    """Return the Score-CAM map: channels weighted by the scores of the image seen through them.

    Args:
        scores: Score of the image multiplied by each channel (see `channel_masks`).

    Example:
        >>> activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
        >>> score_cam(activations, torch.tensor([[3.0, 1.0]]).log())  # weights 3/4 and 1/4
        tensor([[[3.0000, 1.0000]]])

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1; the score of the baseline, equal for
        all channels, cancels in the softmax.
    """
    activations = at_least_float32(activations)
    return weighted_sum(activations, scores.to(activations.dtype).softmax(1))


def ablation_cam(
    activations: Float[Tensor, "b c y x"],
    score: Float[Tensor, " b"],
    scores_without: Float[Tensor, "b c"],
) -> Float[Tensor, "b y x"]:
    """Return the Ablation-CAM map: channels weighted by the relative drop of a score without them.

    Example:
        >>> activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
        >>> ablation_cam(activations, torch.tensor([2.0]), torch.tensor([[1.0, 1.5]]))
        tensor([[[2., 1.]]])

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV. Deviation: relative to the
        absolute value of the score, so that a negative score does not reverse the map.
    """
    activations = at_least_float32(activations)
    size = torch.where(score == 0, 1.0, score.abs())[:, None]
    weights = (score[:, None] - scores_without) / size
    return weighted_sum(activations, weights.to(activations.dtype))


def channel_masks(resized: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return each channel as a mask of the image, normalized to [0, 1].

    Constant channels give masks of zeros.

    Example:
        >>> channel_masks(torch.tensor([[[[1.0, 1.5, 2.5, 3.0]]]]))
        tensor([[[[0.0000, 0.2500, 0.7500, 1.0000]]]])

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1.
    """
    low = resized.amin((2, 3), keepdim=True)
    high = resized.amax((2, 3), keepdim=True)
    return (resized - low) / torch.where(high > low, high - low, 1.0)


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
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
    channels: Int[Tensor, "1 b"],
) -> tuple[Callable[[Int[Tensor, "m b"]], Float[Tensor, "m b"]], bool]:
    """Return the function that scores images without channels, and whether it repeats features.

    If possible each image runs up to the layer once for all channels, whose features are repeated
    there. Both ways must then give the same scores for the given channels, repeated once.
    """
    # Only the layers behind differ between channels, so that those before need to run only once:
    #
    #     b images --> layer --> b features --repeat--> m b features, a channel of each 0 --> scores
    #
    # What leaves the layers before on another way (a skip connection, a size that was stored) would
    # not be repeated. The run with a pair tells: all images through all layers must give the same.
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
            fast = evaluate(pair, repeat=True)
            slow = evaluate(pair, repeat=False)
        except Exception:  # noqa: BLE001 - a model may check the shapes between its layers
            return lambda channels: evaluate(channels, repeat=False), False
        repeated = torch.allclose(fast, slow, rtol=_TOLERANCE, atol=_TOLERANCE)
    return lambda channels: evaluate(channels, repeat=repeated), repeated
