"""Sizes of Vision Transformers that people know by name."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from visattn.models.vision_transformers import VisionTransformer

_CIFAR = {"size": (32, 32), "patch": 4}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"width": 192, "depth": 12, "heads": 3},
    "small": {"width": 384, "depth": 12, "heads": 6},
    "base": {"width": 768, "depth": 12, "heads": 12},
    "large": {"width": 1024, "depth": 24, "heads": 16},
    "huge": {"width": 1280, "depth": 32, "heads": 16, "patch": 14},
    "cifar_192_12": {**_CIFAR, "width": 192, "depth": 12, "heads": 3},
    "cifar_256_7": {**_CIFAR, "width": 256, "depth": 7, "heads": 4},
    "cifar_384_7": {**_CIFAR, "width": 384, "depth": 7, "heads": 6},
    "cifar_384_12": {**_CIFAR, "width": 384, "depth": 12, "heads": 6},
    "cifar_512_6": {**_CIFAR, "width": 512, "depth": 6, "heads": 8},
    "cifar_192_9": {**_CIFAR, "width": 192, "depth": 9, "heads": 12, "ratio": 2.0},
    "vit_lite_7_4": {
        **_CIFAR,
        "width": 256,
        "depth": 7,
        "heads": 4,
        "ratio": 2.0,
        "qkv_bias": False,
    },
    "vit_lite_6_4": {
        **_CIFAR,
        "width": 256,
        "depth": 6,
        "heads": 4,
        "ratio": 2.0,
        "qkv_bias": False,
    },
}
"""What differs from the defaults of `VisionTransformer`. `tiny` to `huge` are those of the papers,
for patches of 16 (`huge`: 14) on 224 pixels; `cifar_WIDTH_DEPTH` have patches of 4 on 32 pixels,
`cifar_192_9` being the ViT of the paper on small data sets; `vit_lite_LAYERS_PATCH` are those of
the paper on compact transformers."""


def vit(name: str, classes: Sequence[str], **options: Any) -> VisionTransformer:
    """Return a Vision Transformer by the name of its size.

    Args:
        name: One of `PRESETS`.
        classes: Names of the classes, in the order of the scores.
        **options: Of `VisionTransformer`; they win over those of the preset.

    Raises:
        ValueError: If there is no such preset, or an option does not fit.

    Example:
        >>> model = vit("cifar_192_9", ("cat", "dog"), stem="shifted", locality=True, depth=1)
        >>> model.width, model.grid
        (192, (8, 8))

    Source:
        Touvron et al. 2020, arXiv:2012.12877, table 1 (tiny, small); Dosovitskiy et al. 2020,
        arXiv:2010.11929, table 1; Lee et al. 2021, arXiv:2112.13492 (cifar_192_9); Hassani et al.
        2021, arXiv:2104.05704 (vit_lite).
    """
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=3) or list(PRESETS)
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(close)}")
    return VisionTransformer(classes, **{**PRESETS[name], **options})
