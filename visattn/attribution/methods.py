"""The ways to make a map of a model and images, on one screen."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from torch import Tensor

from visattn.attribution.attention_based import (
    attention,
    gradient_attention,
    gradient_rollout,
    relevance,
    rollout,
)
from visattn.attribution.attention_rows import one_grid_refusal
from visattn.attribution.bottom_up import itti_koch, unexpected_spectrum
from visattn.attribution.cam import gradcam, gradcam_plus_plus, layercam
from visattn.attribution.gradient_based import input_gradient, integrated_gradients, smoothgrad
from visattn.attribution.perturbation import occlusion, rise
from visattn.blocks.tap import MapKind
from visattn.recording.model_info import ModelInfo

Needs = Literal["tokens", "features", "gradient", "scores", "pixels"]


@dataclass(frozen=True)
class Method:
    """A way to make maps.

    Args:
        name: By which it is asked for.
        title: By which people know it.
        paper: Where it comes from.
        needs: What it needs of a model: attention among `tokens`, `features` on a grid, a
            `gradient` down to the image, `scores` alone, or no more than the `pixels`.
        function: From a subject, normalized images, a target and options to maps.
        kind: Of the maps.
        signed: Whether they have places below 0 too, which speak against the target; an option
            `signed` says otherwise.
        one_grid: Whether it goes through all layers, so that their tokens must keep one grid.
    """

    name: str
    title: str
    paper: str
    needs: Needs
    function: Callable[..., Tensor]
    kind: MapKind
    signed: bool = False
    one_grid: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What the function takes by name, and what it takes it to be if nobody says."""
        found = inspect.signature(self.function).parameters.values()
        return {one.name: one.default for one in found if one.kind is one.KEYWORD_ONLY}

    @property
    def needs_target(self) -> bool:
        """Whether it explains a number, such as the score of a class."""
        return self.kind == "gradient"


_GAE, _ROLLOUT = "arXiv:2103.15679", "arXiv:2005.00928"
_ALL = (
    Method("attention", "Attention", "arXiv:2010.11929", "tokens", attention, "tokens"),
    Method("rollout", "Attention rollout", _ROLLOUT, "tokens", rollout, "tokens", one_grid=True),
    Method(
        "gradient_attention", "Gradient × attention", _GAE, "tokens", gradient_attention, "gradient"
    ),
    Method(
        "gradient_rollout",
        "Gradient rollout",
        "Gildenblat 2020",
        "tokens",
        gradient_rollout,
        "gradient",
        one_grid=True,
    ),
    Method("relevance", "Relevance", _GAE, "tokens", relevance, "gradient", one_grid=True),
    Method("gradcam", "Grad-CAM", "arXiv:1610.02391", "features", gradcam, "gradient"),
    Method(
        "gradcam++", "Grad-CAM++", "arXiv:1710.11063", "features", gradcam_plus_plus, "gradient"
    ),
    Method("layercam", "Layer-CAM", "Jiang et al. 2021", "features", layercam, "gradient"),
    Method(
        "input_gradient",
        "Input gradient",
        "arXiv:1312.6034",
        "gradient",
        input_gradient,
        "gradient",
    ),
    Method("smoothgrad", "SmoothGrad", "arXiv:1706.03825", "gradient", smoothgrad, "gradient"),
    Method(
        "integrated_gradients",
        "Integrated Gradients",
        "arXiv:1703.01365",
        "gradient",
        integrated_gradients,
        "gradient",
        signed=True,
    ),
    Method(
        "occlusion", "Occlusion", "arXiv:1311.2901", "scores", occlusion, "gradient", signed=True
    ),
    Method("rise", "RISE", "arXiv:1806.07421", "scores", rise, "gradient"),
    Method("itti_koch", "Itti–Koch", "Itti et al. 1998", "pixels", itti_koch, "saliency"),
    Method(
        "spectral_residual",
        "Spectral residual",
        "Hou and Zhang 2007",
        "pixels",
        unexpected_spectrum,
        "saliency",
    ),
)
METHODS = {method.name: method for method in _ALL}


def method_of(name: str) -> Method:
    """Return a method by its name.

    Raises:
        ValueError: If there is none; the message lists close matches.

    Example:
        >>> method_of("gradcam").title
        'Grad-CAM'
        >>> method_of("grad-cam")
        Traceback (most recent call last):
        ValueError: there is no method 'grad-cam'; did you mean gradcam or gradcam++?
    """
    if name in METHODS:
        return METHODS[name]
    raise ValueError(f"there is no method {name!r}; {close_names(name, list(METHODS))}")


def close_names(name: str, known: list[str]) -> str:
    """Return a hint at names that look like one, or at all of them.

    Args:
        name: That is none of them.
        known: Those that there are.

    Example:
        >>> close_names("rise1", ["rise", "rollout"]), close_names("x", ["rise", "rollout"])
        ('did you mean rise?', 'there are rise, rollout')
    """
    *others, last = get_close_matches(name, known, n=3) or [""]
    if last:
        return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}?"
    return f"there are {', '.join(known)}"


def refusal_of(method: Method, card: ModelInfo, *, function: bool = False) -> str:
    """Return why a method does not fit a model; "" if it does.

    Args:
        method: To be asked.
        card: Of the model.
        function: Whether the target is a function of what the model returns, so that the model
            needs no class scores.

    Example:
        >>> card = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none")
        >>> refusal_of(METHODS["gradcam"], card)
        'it has no layer whose features lie on a grid'
    """
    if method.needs_target and not function and card.output.refusal:
        return card.output.refusal
    if method.needs == "features":
        reason = card.no_features or "it has no layer whose features lie on a grid"
        return "" if card.features else reason
    if method.needs != "tokens":
        return ""
    if method.one_grid:
        return one_grid_refusal(card)
    return card.refusal or ("" if card.layers else "it has no attention among tokens")


def fitting(card: ModelInfo, *, function: bool = False) -> list[str]:
    """Return the names of the methods that fit a model.

    Args:
        card: Of the model.
        function: Whether the target is a function of what the model returns.

    Example:
        >>> fitting(ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none"))[:3]
        ['input_gradient', 'smoothgrad', 'integrated_gradients']
    """
    return [
        name for name, method in METHODS.items() if not refusal_of(method, card, function=function)
    ]
