"""A loaded model with its preprocessing and class names; imports neither timm nor torchvision."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A loaded model with its preprocessing and class names.

    Args:
        model: The model, in evaluation mode, on the CPU.
        transform: Preprocessing of PIL images, if the library defines it; None if the input size,
            mean and std of the model suffice.
        class_names: Unique names of the classes, or () if unknown.
        weights: `random`, `pretrained`, or the file that they come from.
        notes: What was removed, converted or assumed during loading, in sentences.
    """

    model: nn.Module
    transform: Callable[..., Any] | None
    class_names: tuple[str, ...]
    weights: str
    notes: tuple[str, ...] = ()
