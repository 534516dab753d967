"""Targets: the scalar per image that a map explains, as a function of the output of a model.

A class is given by its index or name; a pixel, region, box or query by a class of `dense_targets`;
anything else by a function of your own: `target=lambda output: output["depth"].mean((1, 2))`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.io.messages import did_you_mean
from visattn.recording.outputs import OutputLayout, class_scores, describe_output
from visattn.recording.subject import Subject
from visattn.results.info import MapInfo, Thing

Target = Callable[[Any], Float[Tensor, " b"]]
"""A differentiable function from the output of a model to one number for each image."""
ScoreType = Literal["probabilities", "logits"]

_SUMS_TO_1 = 1e-3  # rounding error in half precision
_NOTHING = MapInfo()


@dataclass(eq=False)
class Score:
    """A target bound to prepared images, which adds its description to the info of maps.

    Whatever is left open (the class, the box) is chosen on the first call, for the original images,
    and kept, since methods call the target again on variants of them. Except for a user's function,
    an output may hold m variants of b images at once, `[m b, ...]`.

    Args:
        class_indices: Class of each image, or one for all; () to choose it on the first call.
        layout: Where the class scores are in the output; None to find them by name.
        function: From the output of the model and this score to one number for each image; None
            for the score (logit) of the class, by default the predicted one.
        kind: `class`, `thing` (on the photo), `function` (of the user) or `none`.
        num_images: Number of images; 0 to take it from the first call.
        more: Additional entries of the info.

    Example:
        >>> target = Score()
        >>> target(torch.tensor([[0.0, 3.0, 1.0]])), target(torch.tensor([[9.0, 2.0, 1.0]]))
        (tensor([3.]), tensor([2.]))
        >>> target.class_indices, target.initial_values
        ((1,), (3.0,))
    """

    class_indices: tuple[int, ...] = ()
    layout: OutputLayout | None = None
    function: Callable[[Any, "Score"], Float[Tensor, " mb"]] | None = None
    kind: Literal["class", "thing", "function", "none"] = "class"
    num_images: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    things: Sequence[Thing] = ()
    """The pixel, region, box or query of each photo."""
    initial_values: tuple[float, ...] = ()
    """Values of the first call."""
    first_scores: Tensor | None = None
    """Scores of all classes in the first call, `[b, k]`, as the model returned them."""

    def __call__(self, output: Any) -> Float[Tensor, " mb"]:
        """Return one number for each image, from the output of the model.

        Raises:
            ValueError: If a user's function does not return one for each image.
        """
        if self.function is not None:
            values = self.function(output, self)
        else:
            scores = class_scores(output, layout=self.layout)
            if self.first_scores is None:
                self.first_scores = scores.detach()
            values = self.of_class(scores)
        if self.kind == "function" and self.num_images not in (0, len(values)):
            raise ValueError(
                f"a target must return one number for each of {self.num_images} images, got "
                f"{len(values)}"
            )
        self.initial_values = self.initial_values or tuple(values.detach().tolist())
        return values

    def indices(self, scores: Float[Tensor, "mb k"]) -> Int[Tensor, " mb"]:
        """Return the class of each row of scores, by default the predicted class of the first call.

        Raises:
            ValueError: If there is no such class, or not one class for each image.
        """
        self.num_images = self.num_images or len(scores)
        if not self.class_indices:
            self.class_indices = tuple(scores[: self.num_images].argmax(1).tolist())
        classes = self.class_indices
        if len(classes) not in (1, self.num_images):
            raise ValueError(
                f"there must be one target for each of {self.num_images} images, or one for all; "
                f"got {len(classes)} targets"
            )
        if wrong := [each for each in classes if not 0 <= each < scores.shape[1]]:
            raise ValueError(
                f"target must be a class index, 0 to {scores.shape[1] - 1}; got {wrong[0]}"
            )
        return scores.new_tensor(classes).long().repeat(len(scores) // len(classes))

    def of_class(self, scores: Float[Tensor, "mb k"]) -> Float[Tensor, " mb"]:
        """Return the score of the class of each image."""
        return scores.gather(1, self.indices(scores)[:, None])[:, 0]

    def describe(self, index: int, class_names: Sequence[str], info: MapInfo = _NOTHING) -> MapInfo:
        """Return an info with what is explained on an image: class, score, probability, or thing.

        For a model with a single score, `more` says whether its class is predicted.
        """
        classes, first, more = self.class_indices, self.first_scores, {**info.more, **self.more}
        target = classes[index if len(classes) > 1 else 0] if classes else None
        probability = None
        if first is not None and target is not None:
            shares = probabilities(first[index : index + 1].float(), self.layout)
            probability = float(shares[0, target])
            if first.shape[1] == 1:
                is_probability = self.layout is not None and self.layout.is_probability
                more["predicted"] = bool(first[index, 0] > (0.5 if is_probability else 0))
        return replace(
            info,
            target=target,
            class_name=class_name(target, class_names),
            score=self.initial_values[index] if self.initial_values else None,
            probability=probability,
            thing=self.things[index] if self.things else None,
            more=more,
        )


@runtime_checkable
class DenseTarget(Protocol):
    """A pixel, region, box or query to explain for a dense model, in pixels of the photo."""

    def bind(self, subject: Subject, geometries: Sequence[Geometry]) -> Score:
        """Return the score on prepared images.

        Args:
            subject: The model.
            geometries: Geometry of each image.
        """
        ...


TargetLike = int | str | Sequence[int | str] | Target | DenseTarget | None


def function_target(function: Target, num_images: int = 0) -> Score:
    """Wrap a user's function of the output of a model, and check what it returns.

    Example:
        >>> mean = function_target(lambda output: output["out"][:, 3].mean((1, 2)))
        >>> mean({"out": torch.ones(2, 5, 7, 7)}), mean.initial_values
        (tensor([1., 1.]), (1.0, 1.0))
    """

    def checked(output: Any, _: Score) -> Tensor:
        try:
            values: Any = function(output)
        except Exception as error:
            error.add_note(f"the target function was called with {describe_output(output)}")
            raise
        if not isinstance(values, Tensor) or values.ndim != 1 or not values.is_floating_point():
            got = describe_output(values) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                "a target function must return one number for each image, a float tensor [b]; got "
                f"{got} from {describe_output(output)}; an example is "
                "lambda output: output[:, 3] - output[:, 5]"
            )
        return values

    name = getattr(function, "__name__", type(function).__name__)
    return Score((), None, checked, "function", num_images, {"function": name})


def is_function(target: object) -> TypeGuard[Target]:
    """Return whether a target is a function of the output of a model, not a class or a thing.

    Example:
        >>> is_function(Score((1,))), is_function(1), is_function(lambda output: output[:, 1])
        (False, False, True)
    """
    return callable(target) and not (isinstance(target, Score) and target.kind != "function")


def resolve_target(
    target: TargetLike, subject: Subject, geometries: Sequence[Geometry] = ()
) -> Score:
    """Return the score of a target.

    Args:
        target: A class index or name, or one for each image; a `DenseTarget`; a differentiable
            function from the output of the model to one number for each image; or None for the
            predicted class of each image.
        geometries: Geometry of each image, for a `DenseTarget`.

    Raises:
        ValueError: If there is no such class.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> model = torch.nn.Flatten()
        >>> subject = Subject(model, info, model, ("cat", "dog"))
        >>> resolve_target("dog", subject)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 4.])
    """
    layout = subject.info.output
    if isinstance(target, Score):
        return target
    if isinstance(target, DenseTarget):
        return target.bind(subject, geometries)
    if callable(target):
        return function_target(target, len(geometries))
    if layout.error and target is None:  # for methods that use no scores
        return Score(function=lambda *_: torch.zeros(0), kind="none")
    if layout.error:
        raise ValueError(f"{subject.info.name} has no class {target!r}: {layout.error}")
    listed = [target] if isinstance(target, int | str) else target or ()
    indices = (e if isinstance(e, int) else resolve_class_index(e, subject) for e in listed)
    return Score(tuple(indices), layout)


def resolve_class_index(target: int | str, subject: Subject) -> int:
    """Return the index of a class of a model.

    Raises:
        ValueError: If there is no such class; the message suggests similar names.
    """
    names = subject.class_names
    if isinstance(target, int):
        return target
    if not names:
        raise ValueError(
            f"the class names of {subject.info.name} are unknown, got target {target!r}; pass "
            "the index of the class, or the names with class_names="
        )
    if target not in names:
        raise ValueError(
            f"target must be one of the {len(names)} classes of {subject.info.name}, got "
            f"{target!r}; {did_you_mean(target, names)}"
        )
    return names.index(target)


def class_name(index: int | None, names: Sequence[str]) -> str:
    """Return the name of a class; "" if it is unknown.

    Example:
        >>> class_name(1, ("cat", "dog")), class_name(2, ("cat", "dog")), class_name(None, ())
        ('dog', '', '')
    """
    return names[index] if index is not None and index < len(names) else ""


def probabilities(
    scores: Float[Tensor, "b k"], layout: OutputLayout | None = None
) -> Float[Tensor, "b k"]:
    """Return class probabilities: softmax, or sigmoid for a single score or a binary classifier.

    Scores that already are probabilities are returned unchanged.

    Example:
        >>> probabilities(torch.zeros(1, 4)), probabilities(torch.zeros(1, 1))
        (tensor([[0.2500, 0.2500, 0.2500, 0.2500]]), tensor([[0.5000]]))
    """
    if layout is not None and layout.is_probability:
        return scores
    if scores.shape[1] == 1 or (layout is not None and layout.is_binary):
        return scores.sigmoid()
    # The model already ends in a softmax; a second one would be nearly uniform.
    if bool((scores >= 0).all()) and bool(((scores.sum(1) - 1).abs() < _SUMS_TO_1).all()):
        return scores
    return scores.softmax(1)
