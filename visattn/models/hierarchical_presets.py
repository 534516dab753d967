"""Sizes of hierarchical transformers that people know by name."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from visattn.models.hierarchical_transformers import HierarchicalTransformer

SWIN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"width": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)},
    "small": {"width": 96, "depths": (2, 2, 18, 2), "heads": (3, 6, 12, 24)},
    "base": {"width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32)},
}
"""What differs from the defaults of `HierarchicalTransformer`: patches of 4 on 224 pixels, windows
of 7."""


def swin(name: str, classes: Sequence[str], **options: Any) -> HierarchicalTransformer:
    """Return a Swin Transformer by the name of its size.

    Args:
        name: One of `SWIN_PRESETS`.
        classes: Names of the classes, in the order of the scores.
        **options: Of `HierarchicalTransformer`; they win over those of the preset.

    Raises:
        ValueError: If there is no such preset, or an option does not fit.

    Example:
        >>> model = swin("tiny", ("cat", "dog"), width=24, depths=(1, 1), heads=(1, 2))
        >>> model.grid, model.width
        ((56, 56), 24)

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.3.
    """
    if name not in SWIN_PRESETS:
        close = get_close_matches(name, SWIN_PRESETS, n=3) or list(SWIN_PRESETS)
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(close)}")
    return HierarchicalTransformer(classes, **{**SWIN_PRESETS[name], **options})
