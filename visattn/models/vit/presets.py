"""Sizes of Vision Transformers that people know by name."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from visattn.models.vit.vision_transformer import VisionTransformer

_CIFAR: Mapping[str, Any] = {"size": (32, 32), "patch": 4}
_COMPACT: Mapping[str, Any] = {"width": 256, "heads": 4, "ratio": 2.0, "qkv_bias": False}


def _overlapping(layers: int) -> dict[str, Any]:
    """Return what compact convolutional transformers have, with so many convolutions."""
    return {
        "size": (32, 32),
        "stem": "overlapping",
        "stem_options": {"layers": layers, "kernel": 3},
        "pool": "sequence",
    }


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
    "sl_vit": {
        **_CIFAR,
        "width": 192,
        "depth": 9,
        "heads": 12,
        "ratio": 2.0,
        "stem": "shifted",
        "locality": True,
    },
    "vit_lite_7_4": {**_CIFAR, **_COMPACT, "depth": 7},
    "vit_lite_6_4": {**_CIFAR, **_COMPACT, "depth": 6},
    "cct_7_3x1": {**_COMPACT, **_overlapping(1), "depth": 7},
    "cct_6_3x1": {**_COMPACT, **_overlapping(1), "depth": 6, "positions": "sine"},
    "cct_2_3x2": {
        **_COMPACT,
        **_overlapping(2),
        "width": 128,
        "depth": 2,
        "heads": 2,
        "ratio": 1.0,
    },
}
"""What differs from the defaults of `VisionTransformer`. `tiny` to `huge` are those of the papers,
for patches of 16 (`huge`: 14) on 224 pixels; `cifar_WIDTH_DEPTH` have patches of 4 on 32 pixels,
`cifar_192_9` being the ViT of the paper on small data sets and `sl_vit` the same with shifted
patches and locality; `vit_lite_LAYERS_PATCH` and `cct_LAYERS_KERNELxCONVOLUTIONS` are those of the
paper on compact transformers. `cct_6_3x1` has the size that is published with positions that are
not learnt. The authors' are sines along the row of tokens, ours in both directions; their layers go
on from the norm of the tokens, ours from the tokens."""


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
        arXiv:2010.11929, table 1; Lee et al. 2021, arXiv:2112.13492 (cifar_192_9, sl_vit); Hassani
        et al. 2021, arXiv:2104.05704 (vit_lite, cct).
    """
    if name not in PRESETS:
        close = get_close_matches(name, PRESETS, n=3) or list(PRESETS)
        raise ValueError(f"there is no preset {name!r}; there are {', '.join(close)}")
    return VisionTransformer(classes, **{**PRESETS[name], **options})
