"""Attribution targets: the score of a class, or any function of the output of a model."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.io.messages import did_you_mean
from visattn.recording.outputs import OutputLayout, class_scores, describe_output
from visattn.recording.subject import Subject
from visattn.results.info import MapInfo

Target = Callable[[Any], Float[Tensor, " b"]]
"""A differentiable function from the output of a model to one number for each image."""
TargetLike = int | str | Sequence[int | str] | Target | None
ScoreType = Literal["probabilities", "logits"]
"""Keys that the records of all maps have, also of maps that explain no class."""

_SUMS_TO_1 = 1e-3  # rounding of 16 bits


@runtime_checkable
class DescribedTarget(Protocol):
    """A target that describes itself in the info of maps.

    Targets of your own, such as for pixels, boxes or queries, may implement it.
    """

    initial_values: tuple[float, ...]
    """Values of the first call, one for each image."""

    def __call__(self, output: Any, /) -> Float[Tensor, " b"]:
        """Return one number for each image from the output of a model."""
        ...

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:
        """Return what the map of one image explains."""
        ...


class ClassTarget:
    """The score (logit) of one class for each image.

    Without class indices, the predicted class of each image in the first call is used for all
    calls: methods first call the target with the original images, and then with variants.

    Args:
        class_indices: One for each image, or a single one for all; None for the predicted class.
        layout: Where the class scores are in the output; None to find them by name.

    Example:
        >>> import torch
        >>> target = ClassTarget()
        >>> target(torch.tensor([[0.0, 3.0, 1.0]])), target(torch.tensor([[9.0, 2.0, 1.0]]))
        (tensor([3.]), tensor([2.]))
        >>> target.class_indices, target.initial_values
        ((1,), (3.0,))
    """

    def __init__(
        self, class_indices: Sequence[int] | None = None, layout: OutputLayout | None = None
    ) -> None:
        self.class_indices = None if class_indices is None else tuple(class_indices)
        self.layout = layout
        self.initial_values: tuple[float, ...] = ()
        """Scores of the first call."""
        self.predicted: tuple[bool, ...] = ()
        """For a single score, whether its class is predicted in the first call."""
        self.first_scores: Tensor | None = None
        """Scores of all classes in the first call, `[b, k]`; never probabilities made of them."""

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Return the score of the class of each image.

        Args:
            output: Output of the model.

        Raises:
            ValueError: If it has no class scores, or there is no such class, or not one class for
                each image.
        """
        scores = class_scores(output, layout=self.layout)
        self.keep_first(scores)
        if self.class_indices is None:
            self.class_indices = tuple(scores.argmax(1).tolist())
        selected = self.select(scores)
        if scores.shape[1] == 1 and not self.initial_values:
            least = 0.5 if self.layout is not None and self.layout.is_probability else 0
            self.predicted = tuple((scores[:, 0] > least).tolist())
        self.initial_values = self.initial_values or tuple(selected.detach().tolist())
        return selected

    def keep_first(self, scores: Float[Tensor, "b k"]) -> None:
        """Keep the scores of the original images, if no earlier ones are kept."""
        if self.first_scores is None:
            self.first_scores = scores.detach()

    def indices(self, scores: Float[Tensor, "b k"]) -> Int[Tensor, " b"]:
        """Return the index of the class of each image, of scores that the target was called with.

        Raises:
            ValueError: If there is no such class, or not one class for each image.
        """
        indices = self.class_indices or ()
        indices = indices * len(scores) if len(indices) == 1 else indices
        if len(indices) != len(scores):
            raise ValueError(
                f"there must be one target for each of {len(scores)} images, or one for all; got "
                f"{len(indices)} targets"
            )
        _check_class_indices(indices, scores.shape[1])
        return scores.new_tensor(indices).long()

    def select(self, values: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """Return the value of the class of each image."""
        return values.gather(1, self.indices(values)[:, None])[:, 0]

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:
        """Return index, name and score of the class that is explained for an image.

        For a single score also whether its class is predicted: what speaks against it is negative.
        """
        indices = self.class_indices or ()
        target = indices[index if len(indices) > 1 else 0] if indices else None
        probability = None
        if self.first_scores is not None and target is not None:
            scores = self.first_scores[index : index + 1].float()
            probability = float(probabilities(scores, self.layout)[0, target])
        return MapInfo(
            target=target,
            class_name=class_name(target, class_names),
            score=self.initial_values[index] if self.initial_values else None,
            probability=probability,
            more={"predicted": self.predicted[index]} if self.predicted else {},
        )


def is_function(target: object) -> TypeGuard[Target]:
    """Return whether a target is a function of the output of a model, not a class.

    Example:
        >>> is_function(ClassTarget([1])), is_function(1), is_function(lambda output: output[:, 1])
        (False, False, True)
    """
    return callable(target) and not isinstance(target, ClassTarget)


def class_name(index: int | None, names: Sequence[str]) -> str:
    """Return the name of a class; "" if it is unknown.

    Example:
        >>> class_name(1, ("cat", "dog")), class_name(2, ("cat", "dog")), class_name(None, ())
        ('dog', '', '')
    """
    return names[index] if index is not None and index < len(names) else ""


class CallableTarget:
    """A function of the output of a model; its result is checked.

    Example:
        >>> import torch
        >>> mean = CallableTarget(lambda output: output["out"][:, 3].mean((1, 2)))
        >>> mean({"out": torch.ones(2, 5, 7, 7)}), mean.initial_values
        (tensor([1., 1.]), (1.0, 1.0))
    """

    def __init__(self, function: Target) -> None:
        self.function = function
        self.initial_values: tuple[float, ...] = ()
        """Values of the first call."""

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Return the value of the function.

        Raises:
            ValueError: If the function returns anything but one number for each image.
        """
        try:
            values = self.function(output)
        except Exception as error:
            error.add_note(f"the target function was called with {describe_output(output)}")
            raise
        if not isinstance(values, Tensor) or values.ndim != 1 or not values.is_floating_point():
            got = type(values).__name__
            if isinstance(values, Tensor):
                got = f"a tensor of shape {list(values.shape)} and {values.dtype}"
            raise ValueError(
                "a target function must return one number for each image, a float tensor [b]; got "
                f"{got} from {describe_output(output)}; write it as "
                "lambda output: output[:, 3] - output[:, 5]"
            )
        self.initial_values = self.initial_values or tuple(values.detach().tolist())
        return values

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:  # noqa: ARG002
        """Return the value for an image and the name of the function."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        score = self.initial_values[index] if self.initial_values else None
        return MapInfo(score=score, more={"function": name})


class NoTarget:
    """No target, for methods that use no scores with models that have none.

    Example:
        >>> NoTarget().describe(0, ()).score is None
        True
    """

    def __init__(self) -> None:
        self.initial_values: tuple[float, ...] = ()

    def __call__(self, output: Any) -> Float[Tensor, " b"]:  # noqa: ARG002
        """Return an empty tensor."""
        return torch.zeros(0)

    def describe(self, index: int, class_names: Sequence[str]) -> MapInfo:  # noqa: ARG002
        """Return that there is no target."""
        return MapInfo()


def resolve_target(target: TargetLike, explained: Subject) -> DescribedTarget:
    """Return the target function for a class, a list of classes or a function.

    Args:
        target: A class index or name, or one for each image; a differentiable function from the
            output of the model to one number for each image; or None for the predicted class of
            each image.

    Raises:
        ValueError: If there is no such class.
        TypeError: If the target is of another type.

    Example:
        >>> import torch
        >>> from visattn.recording.model_info import ModelInfo
        >>> info = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> model = torch.nn.Flatten()
        >>> explained = Subject(model, info, model, ("cat", "dog"))
        >>> resolve_target("dog", explained)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 4.])
    """
    if isinstance(target, DescribedTarget):
        return target
    if not callable(target) and (error := explained.info.output.error):
        if target is None:
            return NoTarget()
        raise ValueError(f"{explained.info.name} has no class {target!r}: {error}")
    layout = explained.info.output
    if target is None:
        return ClassTarget(layout=layout)
    if isinstance(target, (int, str)):
        return ClassTarget([resolve_class_index(target, explained)], layout)
    if isinstance(target, Sequence):
        indices = [resolve_class_index(item, explained) for item in target]
        return ClassTarget(indices, layout)
    if not callable(target):
        raise TypeError(
            "target must be a class index or name, a list of them, or a function of the model's "
            f"output; got {type(target).__name__}"
        )
    return CallableTarget(target)


def resolve_class_index(target: int | str, explained: Subject) -> int:
    """Return the index of a class of a model.

    Raises:
        ValueError: If there is no such class; the message suggests similar names.
    """
    if isinstance(target, int):
        _check_class_indices([target], len(explained.class_names) or None)
        return target
    names = explained.class_names
    if not names:
        raise ValueError(
            f"the class names of {explained.info.name} are unknown, got target {target!r}; give "
            "the index of the class, or the names by class_names="
        )
    if target not in names:
        raise ValueError(
            f"target must be one of the {len(names)} classes of {explained.info.name}, got "
            f"{target!r}; {did_you_mean(target, names)}"
        )
    return names.index(target)


def _check_class_indices(indices: Sequence[int], num_classes: int | None) -> None:
    invalid = [index for index in indices if index < 0 or (num_classes and index >= num_classes)]
    if invalid:
        limit = f"0 to {num_classes - 1}" if num_classes else "at least 0"
        raise ValueError(f"target must be a class index, {limit}; got {invalid[0]}")


def target_values(
    explained: Subject, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, " b"]:
    """Return the value of the target for each image.

    Raises:
        ValueError: If the target does not return one number for each image.
    """
    return check_one_per_image(target(explained.forward(images)), len(images))


def check_one_per_image(values: Float[Tensor, " b"], count: int) -> Float[Tensor, " b"]:
    """Return the values of a target.

    Raises:
        ValueError: If there is not one for each image.
    """
    if len(values) != count:
        raise ValueError(
            f"a target must return one number for each of {count} images, got {len(values)}"
        )
    return values


def probabilities(
    scores: Float[Tensor, "b k"], layout: OutputLayout | None = None
) -> Float[Tensor, "b k"]:
    """Return class probabilities: softmax, or sigmoid for a single class or one of two.

    Scores that are probabilities are returned as they are.

    Example:
        >>> probabilities(torch.zeros(1, 4)), probabilities(torch.zeros(1, 1))
        (tensor([[0.2500, 0.2500, 0.2500, 0.2500]]), tensor([[0.5000]]))
    """
    if layout is not None and layout.is_probability:
        return scores
    if scores.shape[1] == 1 or (layout is not None and layout.is_binary):
        return scores.sigmoid()
    # The model ends in a softmax, whose softmax would be nearly uniform.
    if bool((scores >= 0).all()) and bool(((scores.sum(1) - 1).abs() < _SUMS_TO_1).all()):
        return scores
    return scores.softmax(1)
