"""Class activation maps of a model: which places of a layer a score rests on."""

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.target_scores import target_values
from visattn.attribution.targets import Target
from visattn.functional.attribution.cam import grad_cam, grad_cam_plus_plus, layer_cam
from visattn.recording.feature_layers import Layer, feature_site
from visattn.recording.frozen_model import frozen
from visattn.recording.layer_place import first_tensor, lies_on_grid, on_grid
from visattn.recording.model_info import ExplainedModel, FeatureSite

Arithmetic = Callable[[Tensor, Tensor], Tensor]


def gradcam(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the channels of a layer, each weighed by its mean gradient, where they speak for it.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        layer: A number of the card's features, or any module, as `feature_site` takes it.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391.
    """
    return _class_activation(grad_cam, subject, images, target, layer)


def gradcam_plus_plus(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return as `gradcam` does, but small things count as much as large ones.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        layer: A number of the card's features, or any module, as `feature_site` takes it.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063.
    """
    return _class_activation(grad_cam_plus_plus, subject, images, target, layer)


def layercam(
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the channels of a layer, each place weighed by its own gradient if that is positive.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        layer: A number of the card's features, or any module, as `feature_site` takes it.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Jiang et al. 2021, "LayerCAM".
    """
    return _class_activation(layer_cam, subject, images, target, layer)


def activations_and_gradients(
    subject: ExplainedModel, images: Float[Tensor, "b c y x"], target: Target, site: FeatureSite
) -> tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]:
    """Return what a layer gave, and the gradient of the target with respect to it.

    Only what lies above the layer is gone back through, and no parameter gets a gradient. Of a
    layer that runs several times the last run counts, or the one that the site names.

    Args:
        subject: The model.
        images: Normalized.
        target: What is to be explained.
        site: The layer.

    Raises:
        ValueError: If the layer does not run, or the scores do not depend on it.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
        >>> site = FeatureSite("0", "b c y x", (2, 3))
        >>> card = ModelInfo("tiny", "other", (2, 3), (0.5,), (0.5,), "none", features=(site,))
        >>> found = activations_and_gradients(
        ...     ExplainedModel(model, card, model), torch.zeros(1, 1, 2, 3), lambda scores:
        scores[:, 4], ...     site)
        >>> torch.equal(found[1].flatten(), model[2].weight[4])
        True
    """
    leaves: list[Tensor] = []
    wrong: list[Tensor] = []
    runs = 0

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        """Begin the graph here; the copy may be overwritten by what follows."""
        nonlocal runs
        runs += 1
        if site.run not in (None, runs) or (first := first_tensor(output)) is None:
            return output
        if site.run is None and not lies_on_grid(first[1], site):
            wrong.append(first[1])  # a run on another grid, as of an activation that is shared
            return output
        leaves.append(first[1].detach().requires_grad_())
        return _replaced(output, first[0], leaves[-1].clone())

    with frozen(subject.model):
        handle = subject.model.get_submodule(site.site).register_forward_hook(cut)
        try:
            values = target_values(subject, images, target)
        finally:
            handle.remove()
        if wrong and not leaves:
            on_grid(wrong[-1], site)  # says what is wrong
        if not leaves:
            raise ValueError(
                f"{site.site} of {subject.card.name} must run to have a gradient map, but "
                f"{f'it ran {runs} times' if runs else 'it did not run'}; choose another layer"
            )
        leaf = leaves[-1]
        gradients = None
        if values.requires_grad:
            [gradients] = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
        if gradients is None:
            raise ValueError(
                f"{site.site} of {subject.card.name} must be on the way to the scores to have a "
                "gradient map, but no score rests on it; choose another layer"
            )
    return on_grid(leaf.detach(), site), on_grid(gradients, site)


def _replaced(output: Any, key: Any, tensor: Tensor) -> Any:
    """Return what a module puts out with other activations in their place."""
    if key is None:
        return tensor
    if isinstance(output, MutableMapping):
        output[key] = tensor
        return output
    parts = list(output)
    parts[key] = tensor
    kind = type(output)
    return kind(*parts) if hasattr(output, "_fields") else kind(parts)


def _class_activation(
    arithmetic: Arithmetic,
    subject: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: Layer,
) -> Float[Tensor, "b gy gx"]:
    site = feature_site(subject, layer)
    return arithmetic(*activations_and_gradients(subject, images, target, site))
