"""Mean and std of images: those of a transform, and those that are passed in their place."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from visattn.geometry.preprocessing import (
    UnsupportedTransform,
    geometry_of_transform,
)
from visattn.models.backbones.huggingface import is_image_processor, processor_transform
from visattn.models.base import DenseModel, ImageClassifier, ImageEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.recording.subject import Subject

ChannelNumbers = float | Sequence[float]
"""A number for all channels, or one for each."""
PASSED_COLORS = "mean= and std="
_TRIED_SIZES = ((480, 640), (1024, 600))


@dataclass(frozen=True)
class Colors:
    """Mean and std that images are normalized with, in place of those of a model.

    Args:
        mean: Of each channel, or of all.
        std: Of each channel, or of all.
        source: Where they come from.

    Example:
        >>> Colors((0.5, 0.2), 1.0).count, Colors(0.5, 0.5).count
        (2, None)
    """

    mean: ChannelNumbers
    std: ChannelNumbers
    source: str = "preprocessing that was loaded"

    @property
    def count(self) -> int | None:
        """Number of channels; None if one number is for all."""
        lengths = [len(each) for each in (self.mean, self.std) if isinstance(each, Sequence)]
        return max(lengths, default=None)

    def per_channel(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std of each channel.

        Raises:
            ValueError: If their number is another one.
        """
        mean, std = (
            tuple(map(float, each)) if isinstance(each, Sequence) else (float(each),) * channels
            for each in (self.mean, self.std)
        )
        if {len(mean), len(std)} != {channels}:
            raise ValueError(
                f"mean and std must be one number, or one for each of {channels} channels, got "
                f"{len(mean)} and {len(std)}"
            )
        return mean, std

    def of(self, explained: Subject) -> Subject:
        """Return an analyzed model whose images are normalized with this mean and std."""
        mean, std = self.per_channel(len(explained.info.mean))
        info = replace(explained.info, mean=mean, std=std, preprocessing_error="")
        return replace(explained, info=replace(info, colors=self.source))


def passed_colors(
    model: nn.Module, mean: ChannelNumbers | None, std: ChannelNumbers | None
) -> Colors:
    """Return the mean and std that were passed for a model.

    Raises:
        ValueError: If one of them is missing or out of range, or the model normalizes images
            itself.

    Example:
        >>> passed_colors(nn.Conv2d(5, 2, 1), 0.5, 0.25).per_channel(2)
        ((0.5, 0.5), (0.25, 0.25))
    """
    if mean is None or std is None:
        raise ValueError(f"mean and std belong together, got mean={mean} and std={std}")
    for name, value in (("mean", mean), ("std", std)):
        numbers = list(value) if isinstance(value, Sequence) else [value]
        if not numbers or not all(isinstance(each, int | float) for each in numbers):
            raise ValueError(f"{name} must be a number, or one for each channel, got {value!r}")
        if name == "std" and min(numbers) <= 0:
            raise ValueError(f"std must be above 0, got {value!r}")
    if own_network(model) is not None:
        raise ValueError(
            f"{type(model).__name__} normalizes images itself, with the mean and std of its "
            "training: mean and std have no use"
        )
    fixed = [list(each) if isinstance(each, Sequence) else each for each in (mean, std)]
    return Colors(fixed[0], fixed[1], PASSED_COLORS)


def own_network(model: nn.Module) -> ImageClassifier | ImageEncoder | None:
    """Return the network of visattn that normalizes images itself; None for other models.

    Example:
        >>> own_network(nn.Conv2d(3, 2, 1)) is None
        True
    """
    network = model.encoder if isinstance(model, Captioner | DenseModel) else model
    return network if isinstance(network, ImageClassifier | ImageEncoder) else None


def recolored(transform: Any, colors: Colors) -> list[Any]:
    """Return the steps of a transform with another mean and std in its last normalization.

    Raises:
        ValueError: If it has none.

    Example:
        >>> from torchvision.transforms import v2
        >>> [_, normalize] = recolored([v2.Resize(5), v2.Normalize([0.5], [0.25])], Colors(0.1, 1))
        >>> normalize.mean
        [0.1]
    """
    steps = list(steps_of(transform))
    last = next((i for i in reversed(range(len(steps))) if step_colors(steps[i])), None)
    if last is None or isinstance(transform, UnsupportedTransform):
        raise ValueError(
            "mean and std take the place of those of a transform, but this one normalizes nothing: "
            "add Normalize(mean, std) to it"
        )
    step = copy.copy(steps[last])
    pair = step_colors(step) or ([], [])
    mean, std = colors.per_channel(len(pair[0]))
    step.mean, step.std = list(mean), list(std)
    return [*steps[:last], step, *steps[last + 1 :]]


def followed_transform(transform: Any) -> Any:
    """Return a transform; for an image processor of transformers, the transform that equals it.

    Raises:
        ValueError: If the processor takes steps that have no counterpart.
    """
    return processor_transform(transform) if is_image_processor(transform) else transform


def transform_colors(transform: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and std that a transform normalizes colors with.

    Raises:
        ValueError: If it changes colors in another way, or is not supported.

    Example:
        >>> from torchvision.transforms import v2
        >>> transform_colors(v2.Compose([v2.Resize(5), v2.Normalize((0.5,), (0.25,))]))
        ((0.5,), (0.25,))
    """
    if isinstance(transform, UnsupportedTransform):
        raise ValueError(transform.reason)  # noqa: TRY004 - of the preprocessing of a model
    steps = list(steps_of(transform))
    colors = [pair for step in steps if (pair := step_colors(step)) is not None]
    if len(colors) > 1:
        raise ValueError(
            "the preprocessing of the model changes colors in another way than by one mean and "
            "std, so that it cannot be resized otherwise: leave out img_size and resize_mode, or "
            "pass transform="
        )
    [(mean, std)] = colors or [([0.0] * 3, [1.0] * 3)]
    return tuple(mean), tuple(std)


def fixed_size(transform: Any) -> tuple[int, int] | None:
    """Return height and width that a transform gives every photo; None if they depend on it.

    Example:
        >>> from torchvision.transforms import v2
        >>> fixed_size([v2.Resize(40), v2.CenterCrop((32, 48))]), fixed_size(v2.Resize(40))
        ((32, 48), None)
    """
    try:
        sizes = {geometry_of_transform(transform, each).input_size for each in _TRIED_SIZES}
    except ValueError:  # reported when it is applied
        return None
    return sizes.pop() if len(sizes) == 1 else None


def step_colors(step: Any) -> tuple[list[float], list[float]] | None:
    """Return the mean and std of a step that normalizes; None for another one.

    Example:
        >>> step_colors(nn.Identity()) is None
        True
    """
    if not (hasattr(step, "mean") and hasattr(step, "std")):
        return None
    mean, std = (torch.as_tensor(values).flatten() for values in (step.mean, step.std))
    return mean.double().tolist(), std.double().tolist()


def steps_of(transform: Any) -> Iterator[Any]:
    """Yield the steps of a transform of torchvision or timm.

    Example:
        >>> len(list(steps_of([nn.Identity(), [nn.Identity()]])))
        2
    """
    steps = getattr(transform, "transforms", transform)
    if isinstance(steps, (list, tuple, nn.Sequential)):
        for step in steps:
            yield from steps_of(step)
    else:
        yield transform
