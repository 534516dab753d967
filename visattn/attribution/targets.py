"""What a map explains: the score of a class, or any number made of what a model returns."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.recording.model_info import ExplainedModel
from visattn.recording.model_outputs import class_scores, described_output

Target = Callable[[Any], Float[Tensor, " b"]]
"""From what a model returns to one number for each image, differentiably."""
Wanted = int | str | Sequence[int | str] | Target | None


@runtime_checkable
class KnownTarget(Protocol):
    """A target that can say what it explains; whatever pixels, boxes or queries need is one too."""

    first: tuple[float, ...]
    """The numbers of the first call, one for each image."""

    def __call__(self, output: Any, /) -> Float[Tensor, " b"]:
        """Return one number for each image of what a model returned."""
        ...

    def about(self, at: int, classes: Sequence[str]) -> dict[str, Any]:
        """Return what is explained of an image, as `made` of a map says it."""
        ...


class ClassTarget:
    """The score of a class of each image.

    Where no class is given, the best one of each image is taken, and that of the first call
    stays: methods call it first with the images as they are, and then with what they made of
    them.

    Args:
        numbers: Of the classes, one for each image, or a single one for all; None for the best.

    Example:
        >>> import torch
        >>> best = ClassTarget()
        >>> best(torch.tensor([[0.0, 3.0, 1.0]])), best(torch.tensor([[9.0, 2.0, 1.0]]))
        (tensor([3.]), tensor([2.]))
        >>> best.numbers, best.first
        ((1,), (3.0,))
    """

    def __init__(self, numbers: Sequence[int] | None = None) -> None:
        self.numbers = None if numbers is None else tuple(numbers)
        self.first: tuple[float, ...] = ()
        """The scores of the first call."""

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Return the score of the class of each image.

        Args:
            output: What the model returned.

        Raises:
            ValueError: If it holds no class scores, there is no such class, or there is not one
                for each image.
        """
        scores = class_scores(output)
        if self.numbers is None:
            self.numbers = tuple(scores.argmax(1).tolist())
        numbers = self.numbers * len(scores) if len(self.numbers) == 1 else self.numbers
        if len(numbers) != len(scores):
            raise ValueError(
                f"there must be one target for each image, or one for all; got {len(numbers)} "
                f"for {len(scores)} images"
            )
        _check_numbers(numbers, scores.shape[1])
        found = scores.gather(1, scores.new_tensor(numbers).long()[:, None])[:, 0]
        self.first = self.first or tuple(found.detach().tolist())
        return found

    def about(self, at: int, classes: Sequence[str]) -> dict[str, Any]:
        """Return number, name and score of the class that is explained of an image."""
        numbers = self.numbers or ()
        number = numbers[at if len(numbers) > 1 else 0] if numbers else None
        known = number is not None and number < len(classes)
        return {
            "target": number,
            "class": classes[number] if known and number is not None else "",
            "score": self.first[at] if self.first else None,
        }


class CallableTarget:
    """Any number made of what the model returns, after a look whether it is one for each image.

    Args:
        called: From what the model returns for a batch to one number for each image.

    Example:
        >>> import torch
        >>> mean = CallableTarget(lambda output: output["out"][:, 3].mean((1, 2)))
        >>> mean({"out": torch.ones(2, 5, 7, 7)}), mean.first
        (tensor([1., 1.]), (1.0, 1.0))
    """

    def __init__(self, called: Target) -> None:
        self.called = called
        self.first: tuple[float, ...] = ()
        """The numbers of the first call."""

    def __call__(self, output: Any) -> Float[Tensor, " b"]:
        """Return what was called.

        Args:
            output: What the model returned.

        Raises:
            ValueError: If it gives anything but one number for each image.
        """
        try:
            found = self.called(output)
        except Exception as error:
            error.add_note(f"the target function was given {described_output(output)}")
            raise
        if not isinstance(found, Tensor) or found.ndim != 1 or not found.is_floating_point():
            given = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                "a target function must return one number for each image, as a tensor of floats "
                f"[b]; of {described_output(output)} it returned {given}; write it as "
                "lambda output: output[:, 3] - output[:, 5]"
            )
        self.first = self.first or tuple(found.detach().tolist())
        return found

    def about(self, at: int, classes: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002
        """Return the number that was made of an image, and the name of the function."""
        name = getattr(self.called, "__name__", type(self.called).__name__)
        return {
            "target": None,
            "class": "",
            "function": name,
            "score": self.first[at] if self.first else None,
        }


class NoTarget:
    """Nothing that is explained: for methods that ask no scores, of models that have none.

    Example:
        >>> NoTarget().about(0, ())
        {'target': None, 'class': '', 'score': None}
    """

    def __init__(self) -> None:
        self.first: tuple[float, ...] = ()

    def __call__(self, output: Any) -> Float[Tensor, " b"]:  # noqa: ARG002
        """Return no number."""
        return torch.zeros(0)

    def about(self, at: int, classes: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002
        """Return that nothing is explained."""
        return {"target": None, "class": "", "score": None}


def target_of(target: Wanted, subject: ExplainedModel) -> KnownTarget:
    """Return what makes one number for each image of what a model returns.

    Args:
        target: A class by its number or its name, or one for each image; a function of what the
            model returns to one number for each image, differentiably; or None for the best
            class of each image.
        subject: The model.

    Raises:
        ValueError: If there is no such class.
        TypeError: If the target is of another kind.

    Example:
        >>> import torch
        >>> from visattn.recording.model_info import ModelInfo
        >>> card = ModelInfo("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> subject = ExplainedModel(torch.nn.Flatten(), card, torch.nn.Flatten(), ("cat", "dog"))
        >>> target_of("dog", subject)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 4.])
    """
    if isinstance(target, KnownTarget):
        return target
    if not callable(target) and (refusal := subject.card.output.refusal):
        if target is None:
            return NoTarget()
        raise ValueError(f"{subject.card.name} has no class {target!r}: {refusal}")
    if target is None:
        return ClassTarget()
    if isinstance(target, (int, str)):
        return ClassTarget([_number(target, subject)])
    if isinstance(target, Sequence):
        return ClassTarget([_number(one, subject) for one in target])
    if not callable(target):
        raise TypeError(
            "a target is a class by number or name, a list of such, or a function of what the "
            f"model returns; got {type(target).__name__}"
        )
    return CallableTarget(target)


def _number(target: int | str, subject: ExplainedModel) -> int:
    """Return the number of a class."""
    if isinstance(target, int):
        _check_numbers([target], len(subject.classes) or None)
        return target
    if not subject.classes:
        raise ValueError(
            f"{subject.card.name} does not know the names of its classes, so {target!r} is none; "
            "give the number of the class"
        )
    if target not in subject.classes:
        close = get_close_matches(target, subject.classes, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see its classes"
        raise ValueError(
            f"{subject.card.name} has no class {target!r} among its {len(subject.classes)}; {hint}"
        )
    return subject.classes.index(target)


def _check_numbers(numbers: Sequence[int], count: int | None) -> None:
    wrong = [number for number in numbers if number < 0 or (count and number >= count)]
    if wrong:
        of = f"the {count} classes are" if count else "classes are"
        last = f" to {count - 1}" if count else ""
        raise ValueError(f"{of} counted from 0{last}, got target {wrong[0]}")
