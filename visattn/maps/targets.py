"""What a map is to explain: the score of some class, or any number made of the scores."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.maps.model_cards import Subject

Target = Callable[[Float[Tensor, "b k"]], Float[Tensor, " b"]]
Of = Literal["probabilities", "scores"]
Wanted = int | str | Sequence[int | str] | Target | None


class ClassTarget:
    """The score of a class of each picture.

    Where no class is given, the best one of each picture is taken, and that of the first call
    stays: methods call it first with the pictures as they are, and then with what they made of
    them.

    Args:
        numbers: Of the classes, one for each picture, or a single one for all; None for the best.

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

    def __call__(self, scores: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """Return the score of the class of each picture.

        Raises:
            ValueError: If there is no such class, or not one for each picture.
        """
        if self.numbers is None:
            self.numbers = tuple(scores.argmax(1).tolist())
        numbers = self.numbers * len(scores) if len(self.numbers) == 1 else self.numbers
        if len(numbers) != len(scores):
            raise ValueError(
                f"there must be one target for each picture, or one for all; got {len(numbers)} "
                f"for {len(scores)} pictures"
            )
        _check_numbers(numbers, scores.shape[1])
        found = scores.gather(1, scores.new_tensor(numbers).long()[:, None])[:, 0]
        self.first = self.first or tuple(found.detach().tolist())
        return found


class CalledTarget:
    """Any number made of the scores of each picture, after a look whether it is one each.

    Args:
        called: From the scores of all pictures to one number for each.
    """

    def __init__(self, called: Target) -> None:
        self.called, self.numbers = called, None
        self.first: tuple[float, ...] = ()
        """The numbers of the first call."""

    def __call__(self, scores: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        """Return what was called.

        Raises:
            ValueError: If it gives anything but one number for each picture.
        """
        found = self.called(scores)
        if found.shape != scores.shape[:1]:
            raise ValueError(
                "a target must make one number for each picture of the scores "
                f"{tuple(scores.shape)}, got {tuple(found.shape)}; write it as "
                "lambda scores: scores[:, 3] - scores[:, 5]"
            )
        self.first = self.first or tuple(found.detach().tolist())
        return found


def target_of(target: Wanted, subject: Subject) -> ClassTarget | CalledTarget:
    """Return what makes one number for each picture of the scores of the classes.

    Args:
        target: A class by its number or its name, or one for each picture; what makes numbers of
            scores, differentiably; or None for the best class of each picture.
        subject: The model that gives the scores.

    Raises:
        ValueError: If there is no such class.
        TypeError: If the target is of another kind.

    Example:
        >>> import torch
        >>> from visattn.maps.model_cards import ModelCard
        >>> card = ModelCard("tiny", "other", (2, 2), (0.5,), (0.5,), "none")
        >>> subject = Subject(torch.nn.Flatten(), card, torch.nn.Flatten(), ("cat", "dog"))
        >>> target_of("dog", subject)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 4.])
    """
    if isinstance(target, (ClassTarget, CalledTarget)):
        return target
    if target is None:
        return ClassTarget()
    if isinstance(target, (int, str)):
        return ClassTarget([_number(target, subject)])
    if isinstance(target, Sequence):
        return ClassTarget([_number(one, subject) for one in target])
    if not callable(target):
        raise TypeError(
            "a target is a class by number or name, a list of such, or what makes numbers of "
            f"scores; got {type(target).__name__}"
        )
    return CalledTarget(target)


def answers(
    subject: Subject,
    variants: Float[Tensor, "m b c y x"],
    target: Target,
    *,
    of: Of = "scores",
) -> Float[Tensor, "m b"]:
    """Return the target of each variant of each picture, all of which the model sees at once.

    Args:
        subject: The model.
        variants: Of b pictures, normalised.
        target: What is asked.
        of: Whether the target is made of scores or of probabilities.

    Raises:
        ValueError: If it is to be made of anything else.
    """
    if of not in ("probabilities", "scores"):
        raise ValueError(f"the target is made of probabilities or of scores, got {of!r}")
    scores = subject.scores(variants.flatten(0, 1))
    given = scores.softmax(1) if of == "probabilities" else scores
    return torch.stack([target(one) for one in given.unflatten(0, variants.shape[:2])])


def variants_at_once(chunk: int, pictures: Float[Tensor, "b c y x"]) -> int:
    """Return how many variants of all pictures fit into what the model sees at once, at least one.

    Args:
        chunk: Pictures that it sees at once.
        pictures: Each of which has variants.

    Raises:
        ValueError: If it sees none.

    Example:
        >>> import torch
        >>> variants_at_once(32, torch.zeros(3, 1, 2, 2))
        10
    """
    if chunk < 1:
        raise ValueError(f"the model must see at least 1 picture at once, got chunk={chunk}")
    return max(1, chunk // len(pictures))


def _number(target: int | str, subject: Subject) -> int:
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
