"""Presets of Vision Transformers: ViT and DeiT sizes, CIFAR sizes, SL-ViT, ViT-Lite and CCT."""

from collections.abc import Mapping, Sequence
from typing import Any

from visattn.io.messages import did_you_mean
from visattn.models.vit.vision_transformer import VisionTransformer

_CIFAR: Mapping[str, Any] = {"img_size": (32, 32), "patch_size": 4}
_COMPACT: Mapping[str, Any] = {
    "embed_dim": 256,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "qkv_bias": False,
}


def _conv_tokenizer(num_layers: int) -> dict[str, Any]:
    """Return the arguments that all compact convolutional transformers (CCT) share."""
    return {
        "img_size": (32, 32),
        "stem": "overlapping",
        "stem_kwargs": {"num_layers": num_layers, "kernel_size": 3},
        "global_pool": "sequence",
    }


VIT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "huge": {"embed_dim": 1280, "depth": 32, "num_heads": 16, "patch_size": 14},
    "cifar_192_12": {**_CIFAR, "embed_dim": 192, "depth": 12, "num_heads": 3},
    "cifar_256_7": {**_CIFAR, "embed_dim": 256, "depth": 7, "num_heads": 4},
    "cifar_384_7": {**_CIFAR, "embed_dim": 384, "depth": 7, "num_heads": 6},
    "cifar_384_12": {**_CIFAR, "embed_dim": 384, "depth": 12, "num_heads": 6},
    "cifar_512_6": {**_CIFAR, "embed_dim": 512, "depth": 6, "num_heads": 8},
    "cifar_192_9": {**_CIFAR, "embed_dim": 192, "depth": 9, "num_heads": 12, "mlp_ratio": 2.0},
    "sl_vit": {
        **_CIFAR,
        "embed_dim": 192,
        "depth": 9,
        "num_heads": 12,
        "mlp_ratio": 2.0,
        "stem": "shifted",
        "lsa": True,
    },
    "vit_lite_7_4": {**_CIFAR, **_COMPACT, "depth": 7},
    "vit_lite_6_4": {**_CIFAR, **_COMPACT, "depth": 6},
    "cct_7_3x1": {**_COMPACT, **_conv_tokenizer(1), "depth": 7},
    "cct_6_3x1": {**_COMPACT, **_conv_tokenizer(1), "depth": 6, "pos_embed_type": "sine"},
    "cct_2_3x2": {
        **_COMPACT,
        **_conv_tokenizer(2),
        "embed_dim": 128,
        "depth": 2,
        "num_heads": 2,
        "mlp_ratio": 1.0,
    },
}
"""Arguments that differ from the defaults of `VisionTransformer`. `tiny` to `huge` are the sizes of
the ViT and DeiT papers for images of 224 pixels; `cifar_DIM_DEPTH` have 4-pixel patches on images
of 32 pixels; `cifar_192_9` is the ViT of the SL-ViT paper and `sl_vit` the same with shifted patch
tokenization and locality self-attention; `vit_lite_DEPTH_PATCH` and `cct_DEPTH_KERNELxCONVOLUTIONS`
are those of the compact transformers paper. `cct_6_3x1` has fixed positions: the authors use sines
along the token sequence, we use two-dimensional ones; their residual branches start from the
normalized tokens, ours from the tokens."""


def create_vit(name: str, class_names: Sequence[str], **options: Any) -> VisionTransformer:
    """Create a Vision Transformer from a preset.

    Args:
        name: One of `VIT_PRESETS`.
        class_names: Names of the classes, in the order of the logits.
        **options: Arguments of `VisionTransformer`; they override those of the preset.

    Raises:
        ValueError: If the preset is unknown or an option is invalid.

    Example:
        >>> model = create_vit("cifar_192_9", ("cat", "dog"), stem="shifted", lsa=True, depth=1)
        >>> model.embed_dim, model.grid_size
        (192, (8, 8))

    Source:
        Touvron et al. 2020, arXiv:2012.12877, table 1 (tiny, small); Dosovitskiy et al. 2020,
        arXiv:2010.11929, table 1; Lee et al. 2021, arXiv:2112.13492 (cifar_192_9, sl_vit); Hassani
        et al. 2021, arXiv:2104.05704 (vit_lite, cct).
    """
    if name not in VIT_PRESETS:
        raise ValueError(f"unknown preset {name!r}; {did_you_mean(name, VIT_PRESETS)}")
    return VisionTransformer(class_names, **{**VIT_PRESETS[name], **options})
