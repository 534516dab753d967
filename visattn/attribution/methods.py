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
from visattn.attribution.attention_flow import attention_flow
from visattn.attribution.cam import (
    eigencam,
    gradcam,
    gradcam_plus_plus,
    hirescam,
    layercam,
    xgradcam,
)
from visattn.attribution.channel_perturbation import ablationcam, scorecam
from visattn.attribution.drise import drise
from visattn.attribution.gradient_based import (
    input_gradient,
    input_x_gradient,
    integrated_gradients,
    smoothgrad,
)
from visattn.attribution.layer_weights import NO_ATTENTION, single_grid_error
from visattn.attribution.legrad import NO_TEXTS, legrad, similarity
from visattn.attribution.model_free import itti_koch, spectral_residual_map
from visattn.attribution.modified_backward import fullgrad, guided_backprop
from visattn.attribution.perturbation import occlusion, rise
from visattn.io.argument_checks import LARGEST_SEED
from visattn.io.messages import did_you_mean
from visattn.recording.model_info import ModelInfo
from visattn.recording.operations import (
    RECTIFIERS,
    SMOOTH_ACTIVATIONS,
    rectifiers_error,
)
from visattn.results.kinds import MapKind

Needs = Literal[
    "tokens",
    "texts",
    "features",
    "positive_features",
    "biases",
    "rectifiers",
    "gradient",
    "scores",
    "boxes",
    "pixels",
]
ARGUMENT_RANGES = {
    "num_masks": (1, 10_000_000),
    "grid_size": (1, 1000),
    "num_samples": (1, 1_000_000),
    "n_steps": (1, 1_000_000),
    "stdev_spread": (0, 1000),
    "sigma": (0, 1000),
    "max_channels": (1, 10_000_000),
    "max_tokens": (1, 100_000),
    "sliding_window_size": (1, 100_000),
    "stride": (1, 100_000),
    "internal_batch_size": (1, 65_536),
    "seed": (0, LARGEST_SEED),
}
"""Smallest and largest values of arguments of methods, beyond which no machine gets."""
NEEDS_FEATURES = ("features", "positive_features", "biases")


@dataclass(frozen=True)
class Method:
    """An attribution method.

    Args:
        name: Identifier in Python and on the command line.
        title: Name in the literature.
        paper: Reference.
        needs: Requirement of the model: attention among `tokens`, these and `texts` to compare
            the image with, `features` on a grid, those that are hardly negative
            (`positive_features`), layers whose `biases` explain its score, `rectifiers` (ReLUs), a
            `gradient` down to the image, only `scores`, `boxes` of a detector, or
            only the `pixels` of the image.
        function: From an `ExplainedModel`, normalized images, a target and options to maps.
        kind: Kind of the maps.
        signed: Whether maps also have negative values, for evidence against the target; an option
            `signed` overrides it.
        single_grid: Whether it combines all layers, so that their tokens must share one grid.
        warning: What its maps do not show; "" if nothing is known.
    """

    name: str
    title: str
    paper: str
    needs: Needs
    function: Callable[..., Tensor]
    kind: MapKind
    signed: bool = False
    single_grid: bool = False
    warning: str = ""

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
    Method("legrad", "LeGrad", "arXiv:2404.03214", "tokens", legrad, "gradient", single_grid=True),
    Method(
        "similarity",
        "Similarity",
        "arXiv:2304.05653",
        "texts",
        similarity,
        "gradient",
        single_grid=True,
    ),
    Method(
        "attention_flow",
        "Attention flow",
        _ROLLOUT,
        "tokens",
        attention_flow,
        "tokens",
        single_grid=True,
    ),
    Method("gradcam", "Grad-CAM", "arXiv:1610.02391", "features", gradcam, "gradient"),
    Method(
        "gradcam++", "Grad-CAM++", "arXiv:1710.11063", "features", gradcam_plus_plus, "gradient"
    ),
    Method("layercam", "LayerCAM", "Jiang et al. 2021", "features", layercam, "gradient"),
    Method("hirescam", "HiResCAM", "arXiv:2011.08891", "features", hirescam, "gradient"),
    Method("xgradcam", "XGrad-CAM", "arXiv:2008.02312", "positive_features", xgradcam, "gradient"),
    Method("eigencam", "Eigen-CAM", "arXiv:2008.00299", "features", eigencam, "saliency"),
    Method("scorecam", "Score-CAM", "arXiv:1910.01279", "features", scorecam, "gradient"),
    Method(
        "ablationcam",
        "Ablation-CAM",
        "Desai and Ramaswamy 2020",
        "features",
        ablationcam,
        "gradient",
    ),
    Method("fullgrad", "FullGrad", "arXiv:1905.00780", "biases", fullgrad, "gradient"),
    Method(
        "input_gradient",
        "Input gradient",
        "arXiv:1312.6034",
        "gradient",
        input_gradient,
        "gradient",
    ),
    Method(
        "input_x_gradient",
        "Gradient × input",
        "arXiv:1605.01713",
        "gradient",
        input_x_gradient,
        "gradient",
        signed=True,
    ),
    Method(
        "guided_backprop",
        "Guided backpropagation",
        "arXiv:1412.6806",
        "rectifiers",
        guided_backprop,
        "gradient",
        warning="fails sanity checks: it restores the edges of the image and hardly depends on the "
        "class or on upper layers (arXiv:1810.03292)",
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
gradcam, xgradcam or gradcam++?
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
    if method.needs == "texts" and not info.has_texts:
        return f"it {NO_TEXTS}"
    if method.needs == "boxes" and not box_target:
        return "it explains a box of a detector, target=BoxTarget((left, top, right, bottom))"
    if method.needs_target and not callable_target and info.output.error:
        return info.output.error
    if method.needs in NEEDS_FEATURES and not info.feature_layers:
        return info.features_error or "it has no layer whose features lie on a grid"
    if method.needs == "positive_features" and "layer_norm" in info.operations.names:
        return (
            "its layer normalization makes features of both signs, whose sum, the divisor of "
            f"{method.title}, is about 0"
        )
    if method.needs == "biases":
        return _biases_error(info)
    if method.needs == "rectifiers":
        return rectifiers_error(info.operations)
    if method.needs not in ("tokens", "texts"):
        return ""
    layers = info.attention_layers
    pools_only = layers and all(layer.single_query or layer.pools for layer in layers)
    if method.name == "legrad" and pools_only:
        return "its only attention is a pool, and LeGrad reads the tokens after each block"
    if method.single_grid:
        return single_grid_error(info)
    return info.attention_error or ("" if info.attention_layers else NO_ATTENTION)


def _biases_error(info: ModelInfo) -> str:
    """Return why gradients times input and biases do not sum to the score; "" if they do."""
    elementwise = RECTIFIERS | SMOOTH_ACTIVATIONS
    others = [name for name in info.operations.names if name not in elementwise]
    if not others:
        return ""
    return (
        "it must consist of convolutions, linear layers, batch normalization, pooling and "
        f"elementwise activations, but computes {', '.join(others)}"
    )


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
        ['input_gradient', 'input_x_gradient', 'smoothgrad']
    """
    return [
        name
        for name, method in METHODS.items()
        if not unsupported_reason(
            method, info, callable_target=callable_target, box_target=box_target
        )
    ]
