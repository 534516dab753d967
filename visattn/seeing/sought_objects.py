"""What maps are to show on pictures whose objects are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from visattn.data.imagenet_categories import classes_of
from visattn.data.located_pictures import LocatedPicture
from visattn.maps.model_cards import Subject


@dataclass(frozen=True)
class Sought:
    """What a map is to show: things of a category on a picture.

    Args:
        picture: With its objects.
        category: Of them; None for all, whatever the model says.
        classes: Numbers of the model's classes that are of the category.
    """

    picture: LocatedPicture
    category: str | None = None
    classes: tuple[int, ...] = ()


def sought_things(
    pictures: Sequence[LocatedPicture], classes: Sequence[str], count: int, *, predicted: bool
) -> tuple[list[Sought], dict[str, int]]:
    """Return what is sought on pictures, and how often a category was met that the model lacks.

    Args:
        pictures: With their objects.
        classes: Names of the model's classes, or none.
        count: Of its classes.
        predicted: Ask for the model's own answer, and count all objects as right places. If not,
            each category on a picture is asked for by itself, wherever the model has a class of it.

    Example:
        >>> from pathlib import Path
        >>> from visattn.data.located_pictures import LocatedObject
        >>> things = (LocatedObject("zebra", []), LocatedObject("person", []))
        >>> photo = LocatedPicture("a.jpg", Path("a.jpg"), (3, 4), things)
        >>> found, lacking = sought_things([photo], (), 1000, predicted=False)
        >>> [(one.category, one.classes) for one in found], lacking
        ([('zebra', (340,))], {'person': 1})
    """
    if predicted:
        return [Sought(picture) for picture in pictures], {}
    found: list[Sought] = []
    lacking: dict[str, int] = {}
    for picture in pictures:
        for category in picture.categories:
            numbers = classes_of(category, classes, count)
            if numbers:
                found.append(Sought(picture, category, numbers))
            else:
                lacking[category] = lacking.get(category, 0) + 1
    return found, lacking


def class_count(subject: Subject) -> int:
    """Return how many classes a model tells apart, if need be by asking it once."""
    if subject.classes:
        return len(subject.classes)
    weight = next(subject.model.parameters(), torch.zeros(()))
    blank = weight.new_zeros(1, len(subject.card.mean), *subject.card.size)
    with torch.no_grad():
        return subject.scores(blank).shape[1]
