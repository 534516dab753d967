"""Class activation maps without gradients: Score-CAM and Ablation-CAM."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.attribution.cam import weighted_sum
from visattn.attribution.layer_outputs import layer_activations, replaced_output
from visattn.attribution.perturbation import evaluate_target, variant_scorer
from visattn.attribution.registry import method
from visattn.attribution.targets import Target, is_function
from visattn.functional.numerics import at_least_float32
from visattn.recording.feature_layers import Layer, resolve_feature_layer, to_grid
from visattn.recording.frozen import frozen
from visattn.recording.subject import Subject
from visattn.results.attention_map import resample_to_input

_MAX_VALUES = 2**25  # of all feature maps in a forward pass
_MAX_IMAGES = 32


@method("scorecam", title="Score-CAM", paper="arXiv:1910.01279", needs="features")
def scorecam(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layer = -1,
    internal_batch_size: int | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Score-CAM: channels of a layer weighted by the score of the image seen through each.

    The model runs once per channel that is not constant, on the image multiplied by the channel;
    what it hides gets the mean color of the normalization.

    Args:
        target: Target to explain; of a class the logit.
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        internal_batch_size: Images in one forward pass; None for as many as suit the device.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1.
    """
    feature_layer = resolve_feature_layer(subject, layers)
    activations, _ = layer_activations(subject, images, target, feature_layer)
    size = (images.shape[2], images.shape[3])
    rows = torch.arange(len(images))
    channels = _selected_first(activations.amax((2, 3)) > activations.amin((2, 3)))
    with frozen(subject.model), torch.no_grad():
        evaluate, count, _ = variant_scorer(
            subject, images, target, internal_batch_size=internal_batch_size
        )
        # A constant channel is not run: its mask of zeros leaves the mean color, which is 0 here.
        scores = evaluate(torch.zeros_like(images)[None]).T.repeat(1, activations.shape[1])
        for chunk in channels.split(count):
            placed = resample_to_input(activations[rows, chunk], size, feature_layer.margin)
            scores[rows, chunk] = evaluate(images * channel_masks(placed)[:, :, None])
    # The score of the baseline, equal for all channels, cancels in the softmax.
    activations = at_least_float32(activations)
    return weighted_sum(activations, scores.to(activations.dtype).softmax(1))


@method("ablationcam", title="Ablation-CAM", paper="Desai and Ramaswamy 2020", needs="features")
def ablationcam(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layer = -1,
    internal_batch_size: int = 512,
) -> Float[Tensor, "b gy gx"]:
    """Ablation-CAM: channels of a layer weighted by the drop of the score without each.

    The part of the model behind the layer runs once per channel that is not 0 everywhere; of
    tokens only those on the grid are set to 0.

    Args:
        target: Target to explain; of a class the logit.
        layers: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        internal_batch_size: Feature maps in one forward pass; fewer if they are large, and at most
            32 if the whole model must run for each.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV.
    """
    feature_layer = resolve_feature_layer(subject, layers)
    activations, called = layer_activations(subject, images, target, feature_layer)
    rows = torch.arange(len(images))
    channels = _selected_first(activations.any(3).any(2))
    output = subject.info.output
    single = not subject.independent or (is_function(target) and (output.key or output.error))

    def evaluate(chunk: Int[Tensor, "m b"], *, repeat: bool) -> Float[Tensor, "m b"]:
        """Return the scores without one channel of each image, m times."""
        # Only the layers behind differ between channels, so that those before run once if `repeat`:
        #
        #     b images --> layer --> b features --repeat--> m b features, without a channel each -->

        def ablate(features: Tensor) -> Tensor:
            copies = features.repeat(len(chunk) if repeat else 1, *[1] * (features.ndim - 1))
            grid = to_grid(copies, called)  # a view
            grid[torch.arange(len(grid)), chunk.flatten()] = 0
            return copies

        def once(_: Tensor) -> Any:
            return subject.forward(images)

        model = replace(subject, forward=once) if repeat else subject
        with replaced_output(subject, called, ablate):
            return evaluate_target(model, images.expand(len(chunk), *images.shape), target)

    with frozen(subject.model), torch.no_grad():
        score = evaluate_target(subject, images[None], target)[0]
        without = score[:, None].repeat(1, activations.shape[1])
        largest = max(1, _MAX_VALUES // activations[0].numel())
        # What leaves the layers before on another way (a skip connection, a size that was stored)
        # is not repeated: it does not fit then, and the whole model runs.
        for repeat, most in ((not single, largest), (False, _MAX_IMAGES)):
            size = 1 if single else max(1, min(internal_batch_size, most) // len(images))
            try:
                for chunk in channels.split(size):
                    without[rows, chunk] = evaluate(chunk, repeat=repeat)
                break
            except Exception:  # a model may check the shapes between its layers
                if not repeat:
                    raise
    return ablation_cam(activations, score, without)


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


def _selected_first(selected: Bool[Tensor, "b c"]) -> Int[Tensor, "m b"]:
    """Return the selected channels of each image; those of others fill the last rows."""
    order = selected.int().argsort(dim=1, descending=True, stable=True)
    return order[:, : int(selected.sum(1).max())].T
