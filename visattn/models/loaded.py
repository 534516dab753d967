"""Metadata of a model that was loaded by name."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from visattn.results.kinds import ResizeMode


@dataclass(frozen=True, eq=False)
class Loaded:
    """Origin, preprocessing and class names of a model; `loaded_with(model)` returns them.

    Args:
        weights: `random`, `pretrained`, or the file or name of their source.
        class_names: Unique names of the classes, or () if unknown.
        transform: Preprocessing of PIL images; None if the size, mean and std of the model suffice.
        processor: Processor of transformers, or its image processor and tokenizer.
        notes: Sentences on what was removed, converted or assumed.
        on_photos: Message if a model of synthetic scenes gets a photo.
        resize_mode: How photos were resized to the input shape in training; None if unknown.
    """

    weights: str = "in memory"
    class_names: tuple[str, ...] = ()
    transform: Any = None
    processor: Any = None
    notes: tuple[str, ...] = ()
    on_photos: str = ""
    resize_mode: ResizeMode | None = None


def mark(model: nn.Module, loaded: Loaded) -> nn.Module:
    """Attach metadata to a model, and return it in evaluation mode."""
    model.visattn_loaded = loaded  # type: ignore[assignment]
    return model.eval()


def loaded_with(model: nn.Module) -> Loaded:
    """Return the metadata that `visattn.load` attached to a model; empty for other models.

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
