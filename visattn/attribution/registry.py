"""The registry of attribution methods."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from torch import Tensor

from visattn.attribution.dense_targets import QueryTarget
from visattn.attribution.targets import DenseTarget, is_function
from visattn.io.messages import did_you_mean
from visattn.recording.model_info import NO_ATTENTION
from visattn.recording.subject import Subject
from visattn.results.kinds import MapKind

Needs = Literal["tokens", "features", "gates", "gradient", "scores", "pixels"]
F = TypeVar("F", bound=Callable[..., Tensor])
_NO_QUERIES = (
    "attention from its queries to the image cannot be recorded: they use deformable attention, or "
    "are tokens of the encoder"
)
_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Method:
    """An attribution method.

    Args:
        name: Identifier in Python and on the command line.
        title: Name in the literature.
        paper: Reference.
        needs: What the model must provide: attention among `tokens`, `features` on a grid,
            attention `gates`, a `gradient` with respect to the image, only `scores`, or nothing,
            if the method reads only the `pixels`.
        function: From a `Subject`, normalized images, a target and options to maps.
        kind: Kind of the maps.
        signed: Whether maps have negative values, for evidence against the target; an option
            `signed` overrides it.
        check: Additional check: from a `Subject` and the target to the reason why the method does
            not fit, "" if it does.
    """

    name: str
    title: str
    paper: str
    needs: Needs
    function: Callable[..., Tensor]
    kind: MapKind = "gradient"
    signed: bool = False
    check: Callable[[Subject, Any], str] = lambda _subject, _target: ""

    @cached_property
    def default_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the function and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    @cached_property
    def on_grid(self) -> bool:
        """Whether maps are on the grid of a layer, instead of the pixels."""
        return self.needs == "tokens" or "layers" in self.default_kwargs

    def explains(self, target: Any) -> bool:
        """Whether a map depends on a target: a class, or the query that attends to the image."""
        of_query = self.name == "attention" and isinstance(target, QueryTarget)
        return self.kind == "gradient" or of_query

    def supports(
        self,
        subject: Subject,
        target: Any = None,
        args: Mapping[str, Any] = _NO_ARGUMENTS,
    ) -> str:
        """Return the reason why a model does not support the method; "" if it does.

        Args:
            subject: A model with its metadata.
            target: What is explained: a class, a function of the output, a `PixelTarget`,
                `RegionTarget`, `BoxTarget` or `QueryTarget`; None for the predicted class.
            args: Arguments of the method. Layers in them are not checked here.

        Example:
            >>> from visattn.attribution.methods import METHODS
            >>> from visattn.recording.model_info import ModelInfo
            >>> info = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none")
            >>> network = Subject(torch.nn.Identity(), info, torch.nn.Identity())
            >>> METHODS["gradcam"].supports(network)
            'it has no layer with features on a grid; select one of its modules with layers='
        """
        info = subject.info
        dense = isinstance(target, DenseTarget)
        if self.kind == "gradient" and not dense and not is_function(target):
            backward = self.needs in ("tokens", "gradient")
            if reason := info.output.error or (info.gradient_error if backward else ""):
                return reason
        # the layers of a dense model are searched when a map is computed
        if self.needs == "features" and not (info.feature_layers or dense or "layers" in args):
            hint = (
                "; select one of its modules with layers="
                if "layers" in self.default_kwargs
                else ""
            )
            return (info.features_error or "it has no layer with features on a grid") + hint
        if reason := self.check(subject, target):
            return reason
        if self.name == "attention" and isinstance(target, QueryTarget):
            return "" if info.query_layers else _NO_QUERIES
        if self.needs == "tokens" and not info.attention_layers:
            return info.attention_error or NO_ATTENTION
        return info.attention_error if self.needs == "tokens" else ""


METHODS: dict[str, Method] = {}
"""All methods by name."""


def method(name: str, *, title: str, paper: str, needs: Needs, **facts: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function as an attribution method.

    The method is then available in `va.explain`, `va.methods_for` and `visattn overlay`. The
    function takes a `Subject` (`model`, `forward`, `info`), normalized images `[b, c, y, x]`, a
    target (a function from the output of `forward` to one number per image), and its own options as
    keyword arguments; it returns maps `[b, y, x]`. Formulas of activations and gradients are turned
    into methods by `class_activation_map`.

    Args:
        name: Identifier in Python and on the command line.
        title: Name in the literature.
        paper: Reference.
        needs: What the model must provide, see `Method`.
        facts: Further arguments of `Method`.

    Example:
        >>> import numpy as np
        >>> import visattn as va
        >>> from visattn.attribution import class_activation_map
        >>> from visattn.models import AttentionResNet
        >>> for name in ("mean_activation", "flat"):  # unregistered after this example
        ...     getfixture("monkeypatch").setitem(METHODS, name, None)
        >>> @method("mean_activation", title="Mean activation", paper="unpublished",
        ...         needs="features", kind="saliency")
        ... @class_activation_map
        ... def mean_activation(activations):
        ...     return activations.mean(1)
        >>> @method("flat", title="Flat", paper="unpublished", needs="scores")
        ... def flat(subject, images, target, *, side: int = 3):
        ...     scores = target(subject.forward(images)).detach()
        ...     return scores[:, None, None].expand(-1, side, side)
        >>> model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> photo = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        >>> [heatmap] = va.explain(model, photo, "mean_activation")
        >>> [other] = va.explain(model, photo, "flat", "dog", side=5)
        >>> heatmap.kind, heatmap.geometry.image_size, tuple(other.values.shape)
        ('saliency', (60, 80), (5, 5))
    """

    def register(function: F) -> F:
        METHODS[name] = Method(name, title, paper, needs, function, **facts)
        return function

    return register


def find_name(name: str, names: Collection[str]) -> str:
    """Return the one of `names` that equals `name` up to case and punctuation; else `name`.

    Example:
        >>> find_name("Grad-CAM++", ["gradcam", "gradcam++"]), find_name("rize", ["rise"])
        ('gradcam++', 'rize')
    """

    def letters(text: str) -> str:
        return "".join(each for each in text.lower() if each.isalnum() or each == "+")

    if name in names:
        return name
    return next((each for each in names if letters(each) == letters(name)), name)


def get_method(name: str) -> Method:
    """Return a method by name, ignoring case and punctuation: `gradcam`, `Grad-CAM`.

    Raises:
        ValueError: If the name is unknown; the message suggests similar names.

    Example:
        >>> from visattn.attribution.methods import get_method
        >>> get_method("Grad-CAM").name
        'gradcam'
        >>> get_method("gradcan")
        Traceback (most recent call last):
        ValueError: method must be one of the attribution methods, got 'gradcan'; did you mean \
gradcam, xgradcam or gradcam++?
    """
    known = find_name(name, METHODS)
    if known in METHODS:
        return METHODS[known]
    raise ValueError(
        f"method must be one of the attribution methods, got {name!r}; "
        f"{did_you_mean(name, METHODS)}"
    )


def supported_methods(subject: Subject, target: Any = None) -> list[str]:
    """Return the names of the methods that a model supports.

    Args:
        subject: A model with its metadata.
        target: What is explained, as for `Method.supports`.

    Example:
        >>> from visattn.attribution.methods import supported_methods
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("net", "other", (8, 8), (0.5,), (0.5,), "none")
        >>> network = Subject(torch.nn.Identity(), info, torch.nn.Identity())
        >>> supported_methods(network)[:3]
        ['input_gradient', 'input_x_gradient', 'smoothgrad']
    """
    return [name for name, entry in METHODS.items() if not entry.supports(subject, target)]


def default_method(supported: Sequence[str], *, of_texts: bool = False, num_layers: int = 0) -> str:
    """Return the default method: rollout if supported, else Grad-CAM, attention or input gradients.

    Args:
        supported: Names of the methods that the model supports.
        of_texts: Whether texts are explained, which rollout would ignore.
        num_layers: Number of selected layers: rollout takes none, Grad-CAM at most one.

    Example:
        >>> default_method(["gradcam", "rollout"]), default_method(["rise", "gradcam"])
        ('rollout', 'gradcam')
    """
    preferred = ["gradcam", "rollout"] if num_layers else ["rollout", "gradcam"]
    if num_layers > 1:
        preferred = ["attention", *preferred]
    if of_texts:
        preferred = ["legrad", "gradcam", *preferred]
    matches = [name for name in (*preferred, "attention", "input_gradient") if name in supported]
    return matches[0] if matches else "gradcam"
