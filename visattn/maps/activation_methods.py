"""Class activation maps of a model: which places of a layer a score rests on."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.functional.class_activations import grad_cam, grad_cam_plus_plus, layer_cam
from visattn.maps.frozen_models import frozen
from visattn.maps.model_cards import FeatureSite, Subject
from visattn.maps.targets import Target

Arithmetic = Callable[[Tensor, Tensor], Tensor]


def gradcam(
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the channels of a layer, each weighed by its mean gradient, where they speak for it.

    Args:
        subject: The model.
        pictures: Normalised.
        target: What is to be explained.
        layer: Which of the card's features, by number or by the path of the module.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391.
    """
    return _class_activation(grad_cam, subject, pictures, target, layer)


def gradcam_plus_plus(
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return as `gradcam` does, but small things count as much as large ones.

    Args:
        subject: The model.
        pictures: Normalised.
        target: What is to be explained.
        layer: Which of the card's features, by number or by the path of the module.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063.
    """
    return _class_activation(grad_cam_plus_plus, subject, pictures, target, layer)


def layercam(
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Return the channels of a layer, each place weighed by its own gradient if that is positive.

    Args:
        subject: The model.
        pictures: Normalised.
        target: What is to be explained.
        layer: Which of the card's features, by number or by the path of the module.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Jiang et al. 2021, "LayerCAM".
    """
    return _class_activation(layer_cam, subject, pictures, target, layer)


def activations_and_gradients(
    subject: Subject, pictures: Float[Tensor, "b c y x"], target: Target, site: FeatureSite
) -> tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]:
    """Return what a layer gave, and the gradient of the target with respect to it.

    Only what lies above the layer is gone back through, and no parameter gets a gradient.

    Args:
        subject: The model.
        pictures: Normalised.
        target: What is to be explained.
        site: The layer.

    Raises:
        ValueError: If the layer does not run exactly once, or the scores do not depend on it.

    Example:
        >>> from visattn.maps.model_cards import ModelCard
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
        >>> site = FeatureSite("0", "b c y x", (2, 3))
        >>> card = ModelCard("tiny", "other", (2, 3), (0.5,), (0.5,), "none", features=(site,))
        >>> found = activations_and_gradients(
        ...     Subject(model, card, model), torch.zeros(1, 1, 2, 3), lambda scores: scores[:, 4],
        ...     site)
        >>> torch.equal(found[1].flatten(), model[2].weight[4])
        True
    """
    leaves: list[Tensor] = []

    def cut(_: nn.Module, __: Any, output: Any) -> Any:
        """Begin the graph here; the copy may be overwritten by what follows."""
        first, *others = output if isinstance(output, tuple) else (output,)
        leaves.append(first.detach().requires_grad_())
        again = leaves[-1].clone()
        return (again, *others) if isinstance(output, tuple) else again

    with frozen(subject.model):
        handle = subject.model.get_submodule(site.site).register_forward_hook(cut)
        try:
            values = target(subject.scores(pictures))
        finally:
            handle.remove()
        if len(leaves) != 1 or not values.requires_grad:
            reason = f"it ran {len(leaves)} times" if len(leaves) != 1 else "no score rests on it"
            raise ValueError(
                f"{site.site} of {subject.card.name} must run once on the way to the scores to "
                f"have a gradient map, but {reason}; choose another layer"
            )
        [gradients] = torch.autograd.grad(values.sum(), leaves)
    return on_grid(leaves[0].detach(), site), on_grid(gradients, site)


def on_grid(features: Tensor, site: FeatureSite) -> Float[Tensor, "b d gy gx"]:
    """Return features of any layout with channels first.

    Args:
        features: As the module gives them.
        site: Where they come from.

    Raises:
        ValueError: If they are not of the layout that was said.

    Example:
        >>> on_grid(torch.zeros(7, 2 + 15, 4), FeatureSite("norm", "b n c", (3, 5), 2)).shape
        torch.Size([7, 4, 3, 5])
    """
    axes = len(site.layout.split())
    count = site.before + site.grid[0] * site.grid[1]
    if features.ndim != axes or (axes == 3 and features.shape[1] != count):
        raise ValueError(
            f"{site.site} was said to give [{site.layout}] on {site.grid[0]} x {site.grid[1]} "
            f"places after {site.before} tokens, got {list(features.shape)}"
        )
    if site.layout == "b n c":
        return features[:, site.before :].mT.unflatten(-1, site.grid)
    return features.movedim(-1, 1) if site.layout == "b y x c" else features


def chosen_site(subject: Subject, layer: int | str) -> FeatureSite:
    """Return one of the places where activations lie on a grid.

    Args:
        subject: The model.
        layer: Its number among the card's features, -1 for the last, or the path of the module.

    Raises:
        ValueError: If there is none.
    """
    sites = subject.card.features
    named = [site for site in sites if site.site == layer]
    if isinstance(layer, int) and -len(sites) <= layer < len(sites):
        return sites[layer]
    if named:
        return named[0]
    known = ", ".join(site.site for site in sites) or "none"
    raise ValueError(
        f"{subject.card.name} has no features at layer {layer!r}; there are {len(sites)}: {known}"
    )


def _class_activation(
    arithmetic: Arithmetic,
    subject: Subject,
    pictures: Float[Tensor, "b c y x"],
    target: Target,
    layer: int | str,
) -> Float[Tensor, "b gy gx"]:
    site = chosen_site(subject, layer)
    return arithmetic(*activations_and_gradients(subject, pictures, target, site))
