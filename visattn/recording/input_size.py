"""Which images a model takes, and what its classes are called, where somebody says so."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from visattn.recording.frozen_model import evaluating
from visattn.recording.probe_cache import forward_of

Classes = Sequence[str] | Mapping[int, str] | Mapping[str, str]
_USUAL = (28, 32, 64, 96, 128, 224, 256, 299, 384)  # sizes that are tried
_ATTRIBUTES = ("image_size", "img_size", "input_size")
_CONFIGS = ("default_cfg", "pretrained_cfg", "config")


def checked_size(size: Any) -> tuple[int, int]:
    """Return height and width.

    Args:
        size: One number for both, or two.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> checked_size(32), checked_size((48, 64))
        ((32, 32), (48, 64))
    """
    if (found := _sides(size)) is None or (isinstance(size, Sequence) and len(size) != 2):
        raise ValueError(f"size must be one number or (height, width) of the images, got {size!r}")
    return found


def own_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the size of images that a model or a part of it says it is made for, if one does.

    It is an attribute `image_size`, `img_size` or `input_size`, or stands in a `default_cfg`,
    `pretrained_cfg` or `config`; the model itself is asked before its parts.

    Args:
        model: Any.

    Example:
        >>> model = nn.Sequential(nn.Flatten())
        >>> own_size(model)
        >>> model[0].img_size = 32
        >>> own_size(model)
        (32, 32)
    """
    sizes = (_sides(size) for part in model.modules() for size in _said(part))
    return next((size for size in sizes if size is not None), None)


def size_hint(model: nn.Module, made_for: tuple[int, int], channels: int, failure: str) -> str:
    """Return what to do for a model that does not run on the size that was tried.

    Args:
        model: Any.
        made_for: The size of images that it says it is made for, or that most take.
        channels: Of its images.
        failure: Why it does not.
    """
    if failure.startswith("TypeError"):
        return "a model must take a batch of images alone; wrap it in a module that does"
    sizes = dict.fromkeys([made_for, *((size, size) for size in _USUAL)])
    running = [size for size in sizes if _runs(model, channels, size)]
    if not running:
        return (
            "say the size of its images: visattn.explain(model, images, size=(height, width)), "
            "or --input-size HEIGHTxWIDTH"
        )
    listed = " and ".join(f"{height} x {width}" for height, width in running)
    height, width = running[0]
    sides = (height, f"{height}") if height == width else (running[0], f"{height}x{width}")
    return (
        f"it runs on {listed}: visattn.explain(model, images, size={sides[0]}), or "
        f"--input-size {sides[1]}"
    )


def class_names(classes: Classes, count: int | None) -> tuple[str, ...]:
    """Return names of classes in the order of their numbers.

    Args:
        classes: Names in order, or by number.
        count: How many classes there are, if that is known.

    Raises:
        TypeError: If they are a text.
        ValueError: If there are not as many names, a number is missing, or a name stands twice.

    Example:
        >>> class_names({"1": "dog", "0": "cat"}, 2)
        ('cat', 'dog')
    """
    if isinstance(classes, str):
        raise TypeError(f"classes must be names, one for each class, got the text {classes!r}")
    if isinstance(classes, Mapping):
        numbered = {int(number): str(name) for number, name in classes.items()}
        if sorted(numbered) != list(range(len(numbered))):
            raise ValueError(
                f"classes must be numbered from 0 to {len(numbered) - 1}, got "
                f"{sorted(numbered)[:5]} and so on"
            )
        names = tuple(numbered[number] for number in range(len(numbered)))
    else:
        names = tuple(map(str, classes))
    if count is not None and len(names) != count:
        raise ValueError(f"there must be a name for each of {count} classes, got {len(names)}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names of classes must differ, got {twice[0]!r} more than once")
    return names


def _said(part: nn.Module) -> Iterator[Any]:
    for name in _ATTRIBUTES:
        yield vars(part).get(name)  # no properties, which may do anything
    for name in _CONFIGS:
        config = getattr(part, name, None)
        for key in _ATTRIBUTES:
            yield config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def _sides(size: Any) -> tuple[int, int] | None:
    """Return height and width of a size as people write it: one number, two, or channels first."""
    if isinstance(size, int) and not isinstance(size, bool):
        return (size, size) if size > 0 else None
    if not isinstance(size, Sequence) or isinstance(size, str):
        return None
    sides = cast("Sequence[Any]", size)
    whole = all(isinstance(side, int) and side > 0 for side in sides)
    return (sides[-2], sides[-1]) if whole and len(sides) in (2, 3) else None


def _runs(model: nn.Module, channels: int, size: tuple[int, int]) -> bool:
    """Whether a model runs on an image of some size."""
    weight = next((one for one in model.parameters() if one.is_floating_point()), torch.zeros(()))
    zeros = weight.new_zeros(1, channels, *size)
    devices = [zeros.device] if zeros.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model):
        try:
            forward_of(model)(zeros)
        except Exception:  # noqa: BLE001 - whatever a foreign model raises means no
            return False
    return True
