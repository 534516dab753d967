"""Table of attribution methods."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from visattn.attribution.attention_based import (
    attention,
    gradient_attention,
    gradient_rollout,
    relevance,
    rollout,
)
from visattn.attribution.cam import gradcam, gradcam_plus_plus, layercam
from visattn.attribution.drise import drise
from visattn.attribution.gradient_based import input_gradient, integrated_gradients, smoothgrad
from visattn.attribution.layer_weights import NO_ATTENTION, single_grid_error
from visattn.attribution.model_free import itti_koch, spectral_residual_map
from visattn.attribution.perturbation import occlusion, rise
from visattn.blocks.tap import MapKind
from visattn.io.messages import did_you_mean
from visattn.recording.model_info import ModelInfo

Needs = Literal["tokens", "features", "gradient", "scores", "boxes", "pixels"]


@dataclass(frozen=True)
class Method:
    """An attribution method.

    Args:
        name: Identifier in Python and on the command line.
        title: Name in the literature.
        paper: Reference.
        needs: Requirement of the model: attention among `tokens`, `features` on a grid, a
            `gradient` down to the image, only `scores`, `boxes` of a detector, or only the
            `pixels` of the image.
        function: From an `ExplainedModel`, normalized images, a target and options to maps.
        kind: Kind of the maps.
        signed: Whether maps also have negative values, for evidence against the target; an option
            `signed` overrides it.
        single_grid: Whether it combines all layers, so that their tokens must share one grid.
    """

    name: str
    title: str
    paper: str
    needs: Needs
    function: Callable[..., Tensor]
    kind: MapKind
    signed: bool = False
    single_grid: bool = False

    @property
    def default_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the function and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {
            parameter.name: parameter.default
            for parameter in parameters
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    @property
    def needs_target(self) -> bool:
        """Whether it explains a target, such as the score of a class."""
        return self.kind == "gradient"


_GAE, _ROLLOUT = "arXiv:2103.15679", "arXiv:2005.00928"
_ALL = (
    Method("attention", "Attention", "arXiv:2010.11929", "tokens", attention, "tokens"),
    Method("rollout", "Attention rollout", _ROLLOUT, "tokens", rollout, "tokens", single_grid=True),
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
        single_grid=True,
    ),
    Method("relevance", "Relevance", _GAE, "tokens", relevance, "gradient", single_grid=True),
    Method("gradcam", "Grad-CAM", "arXiv:1610.02391", "features", gradcam, "gradient"),
    Method(
        "gradcam++", "Grad-CAM++", "arXiv:1710.11063", "features", gradcam_plus_plus, "gradient"
    ),
    Method("layercam", "LayerCAM", "Jiang et al. 2021", "features", layercam, "gradient"),
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
    Method("drise", "D-RISE", "arXiv:2006.03204", "boxes", drise, "gradient"),
    Method("itti_koch", "Itti–Koch", "Itti et al. 1998", "pixels", itti_koch, "saliency"),
    Method(
        "spectral_residual",
        "Spectral residual",
        "Hou and Zhang 2007",
        "pixels",
        spectral_residual_map,
        "saliency",
    ),
)
METHODS = {method.name: method for method in _ALL}


def get_method(name: str) -> Method:
    """Return a method by name.

    Raises:
        ValueError: If the name is unknown; the message suggests similar names.

    Example:
        >>> get_method("gradcam").title
        'Grad-CAM'
        >>> get_method("grad-cam")
        Traceback (most recent call last):
        ValueError: method must be one of the attribution methods, got 'grad-cam'; did you mean \
gradcam or gradcam++?
    """
    if name in METHODS:
        return METHODS[name]
    raise ValueError(
        f"method must be one of the attribution methods, got {name!r}; "
        f"{did_you_mean(name, METHODS)}"
    )


def unsupported_reason(
    method: Method, info: ModelInfo, *, callable_target: bool = False, box_target: bool = False
) -> str:
    """Return why a model does not support a method; "" if it does.

    Args:
        method: The method.
        info: Metadata of the model.
        callable_target: Whether the target is a function of the model's output, so that the model
            needs no class scores.
        box_target: Whether the target is a `BoxTarget`.

    Example:
        >>> info = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none")
        >>> unsupported_reason(METHODS["gradcam"], info)
        'it has no layer whose features lie on a grid'
    """
    if method.needs == "boxes" and not box_target:
        return "it explains a box of a detector, target=BoxTarget((left, top, right, bottom))"
    if method.needs_target and not callable_target and info.output.error:
        return info.output.error
    if method.needs == "features":
        reason = info.features_error or "it has no layer whose features lie on a grid"
        return "" if info.feature_layers else reason
    if method.needs != "tokens":
        return ""
    if method.single_grid:
        return single_grid_error(info)
    return info.attention_error or ("" if info.attention_layers else NO_ATTENTION)


def supported_methods(
    info: ModelInfo, *, callable_target: bool = False, box_target: bool = False
) -> list[str]:
    """Return the names of the methods that a model supports.

    Args:
        info: Metadata of the model.
        callable_target: Whether the target is a function of the model's output.
        box_target: Whether the target is a `BoxTarget`.

    Example:
        >>> supported_methods(ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none"))[:3]
        ['input_gradient', 'smoothgrad', 'integrated_gradients']
    """
    return [
        name
        for name, method in METHODS.items()
        if not unsupported_reason(
            method, info, callable_target=callable_target, box_target=box_target
        )
    ]
