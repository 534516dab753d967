"""Several methods and targets in one call of `visattn.explain`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor

from visattn.attribution.dense_targets import DenseTarget
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import Target

Targets = int | str | Target | DenseTarget | Sequence[Any] | Tensor | None
"""What `explain` takes: a target of all images, a list of them, or a list for each image."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list of methods or targets.

    Example:
        >>> is_list(["dog"]), is_list("dog")
        (True, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str)


def arguments_of_methods(
    method: str | Sequence[str], method_args: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the arguments of each method: of several methods, those that it has.

    Raises:
        ValueError: If there is no method, or none of them has an argument.

    Example:
        >>> arguments_of_methods(["gradcam", "occlusion"], {"stride": 8})
        {'gradcam': {}, 'occlusion': {'stride': 8}}
    """
    if isinstance(method, str):
        return {method: dict(method_args)}
    names = list(dict.fromkeys(method))
    if not names:
        raise ValueError("there must be at least one method, got none")
    known = {name: {*METHODS[name].default_kwargs} for name in names if name in METHODS}
    own = [name for name in names if name not in known]  # refused, or of captioners
    for argument in method_args:
        if not own and not any(argument in each for each in known.values()):
            listed = sorted({*()}.union(*known.values()))
            raise ValueError(
                f"none of {', '.join(names)} has an argument {argument!r}; there are "
                f"{', '.join(listed) or 'none'}"
            )
    return {
        name: {key: method_args[key] for key in method_args if key in known.get(name, method_args)}
        for name in names
    }


def targets_per_image(target: Targets, count: int) -> list[list[Any]]:
    """Return the targets of each image: a list is for every image, a list of lists has theirs.

    Raises:
        ValueError: If there is no target, or not a list for each image.

    Example:
        >>> targets_per_image(["cat", "dog"], 2), targets_per_image([["cat"], ["dog"]], 2)
        ([['cat', 'dog'], ['cat', 'dog']], [['cat'], ['dog']])
    """
    if isinstance(target, Tensor):  # the labels of a batch
        rows = [[label] for label in target.tolist()]
    elif not is_list(target):
        return [[target]] * count
    else:
        rows = list(target)
    lists = [is_list(row) for row in rows]
    if not any(lists):
        rows, lists = [rows] * count, [True]
    if not rows or any(lists) != all(lists) or not all(map(len, rows)):
        raise ValueError(
            "targets must be a list of classes, which are explained on every image, or a list of "
            f"such lists, one for each image; got {target!r}"
        )
    if len(rows) != count:
        raise ValueError(f"there must be a list of targets for each of {count} images, got "
                         f"{len(rows)}")  # fmt: skip
    return [list(row) for row in rows]
