"""What comes with a model that was loaded by name, apart from its weights."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True, eq=False)
class Loaded:
    """Origin, preprocessing and class names of a model; `loaded_with(model)` returns them.

    Args:
        weights: `random`, `pretrained`, or the file or name that they come from.
        class_names: Unique names of the classes, or () if unknown.
        transform: Preprocessing of PIL images; None if the size, mean and std of the model suffice.
        processor: Processor of transformers, or its image processor and tokenizer.
        notes: What was removed, converted or assumed, in sentences.
        on_photos: What is said when a model of synthetic scenes gets a photo.
        resize_mode: How a captioner's photos get the shape of its input, as in its training.
    """

    weights: str = "in memory"
    class_names: tuple[str, ...] = ()
    transform: Any = None
    processor: Any = None
    notes: tuple[str, ...] = ()
    on_photos: str = ""
    resize_mode: Literal["crop", "squash", "pad"] = "crop"


def mark(model: nn.Module, loaded: Loaded) -> nn.Module:
    """Keep with a model how it was loaded, and return it in evaluation mode."""
    model.visattn_loaded = loaded  # type: ignore[assignment]
    return model.eval()


def loaded_with(model: nn.Module) -> Loaded:
    """Return what `visattn.load` kept with a model; of a model in memory nothing is known.

    Example:
        >>> loaded_with(nn.Linear(2, 3)).weights
        'in memory'
    """
    return getattr(model, "visattn_loaded", Loaded())


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique class names: repeated names get their index appended.

    Example:
        >>> unique_names(["crane", "cat", "crane"])
        ('crane (0)', 'cat', 'crane (2)')
    """
    counts = Counter(names)
    return tuple(f"{n} ({i})" if counts[n] > 1 else n for i, n in enumerate(names))
