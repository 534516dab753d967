"""Blocks as `attn_layer` of timm's networks, and our Vision Transformers in its factory.

Importing this module registers the models: `timm.create_model("visattn_vit_tiny")`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from timm.models import is_model, register_model
from torch import nn

from visattn.blocks.registry import block_info, create_block
from visattn.models.base import ImageClassifier
from visattn.models.vit.vision_transformer import VIT_PRESETS, create_vit


def attn_layer(name: str, **options: Any) -> Callable[..., nn.Module]:
    """Return a block as the argument `attn_layer` of timm's ResNets and alike.

    timm puts one at the end of each residual branch, of the branch's number of channels. Weights of
    a pretrained network do not fit then: `visattn.insert` keeps them.

    Args:
        name: Name of a block, see `visattn.list_blocks`.
        options: Arguments of the block.

    Raises:
        ValueError: If the block does not exist or does not return features of the same shape.

    Example:
        >>> import timm, torch
        >>> model = timm.create_model(
        ...     "resnet18", block_args={"attn_layer": attn_layer("cbam", reduction=8)}
        ... )
        >>> type(model.layer1[0].se).__name__, model(torch.zeros(1, 3, 64, 64)).shape
        ('CBAM', torch.Size([1, 1000]))
    """
    block_info(name)  # refuses an unknown name here, not inside timm
    return partial(_create_attn, name, options)


def _create_attn(
    name: str, options: dict[str, Any], channels: int, device: Any = None, dtype: Any = None
) -> nn.Module:
    return create_block(name, channels, **options).to(device=device, dtype=dtype)


def register_models() -> list[str]:
    """Register our Vision Transformers in timm and return their names.

    Importing this module calls it. `num_classes`, `in_chans` (1 or 3), `checkpoint_path` and all
    arguments of `VisionTransformer` can be passed to `timm.create_model`; images are float tensors,
    normalized as `timm.data.resolve_model_data_config` says. timm's optimizers get the layers for
    layer-wise learning rates, and the parameters without weight decay.

    Example:
        >>> import timm, torch
        >>> "visattn_cct_7_3x1" in register_models()
        True
        >>> model = timm.create_model("visattn_cct_7_3x1", num_classes=10)
        >>> timm.data.resolve_model_data_config(model)["mean"]
        (0.485, 0.456, 0.406)
        >>> model(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    return [_register(preset) for preset in VIT_PRESETS]


def _register(preset: str) -> str:
    has_family = preset.startswith(("cct_", "vit_", "sl_"))
    name = f"visattn_{preset}" if has_family else f"visattn_vit_{preset}"
    if is_model(name):
        return name

    def create(
        pretrained: bool = False, num_classes: int = 1000, **options: Any
    ) -> ImageClassifier:
        if pretrained:
            raise ValueError(
                f"{name} has no pretrained weights; load yours with visattn.load or checkpoint_path"
            )
        # timm passes pretrained_cfg and pretrained_cfg_overlay to each model.
        own = {key: value for key, value in options.items() if not key.startswith("pretrained_")}
        model = create_vit(preset, _class_names(name, num_classes), **_own_options(name, own))
        vars(model).update(
            num_classes=num_classes,
            num_features=model.embed_dim,
            no_weight_decay=partial(set, model.NO_WEIGHT_DECAY),
            group_matcher=_group_matcher,
        )
        vars(model)["pretrained_cfg"] = vars(model)["default_cfg"] = {  # timm's data functions
            "architecture": name, "input_size": (len(model.mean), *model.img_size),
            "num_classes": num_classes, "mean": model.mean, "std": model.std,
            "interpolation": "bicubic", "crop_pct": 0.9, "classifier": "head",
        }  # fmt: skip
        return model

    create.__name__ = name
    create.__module__ = __name__
    register_model(create)
    return name


def _class_names(name: str, num_classes: int) -> list[str]:
    if num_classes < 2:
        raise ValueError(
            f"num_classes of {name} must be at least 2, got {num_classes}; for features without a "
            "head, call forward_features of the model"
        )
    return [str(index) for index in range(num_classes)]


def _own_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `VisionTransformer` for options as timm's models accept them."""
    own = {key: value for key, value in options.items() if key not in ("cache_dir", "in_chans")}
    if own.pop("drop_rate", 0.0):
        raise ValueError(f"{name} has no dropout: use drop_path_rate or patch_drop_rate")
    if isinstance(size := own.get("img_size"), int):
        own["img_size"] = (size, size)
    if options.get("in_chans", 3) == 1:  # the means over the channels
        own = {"mean": (0.449,), "std": (0.226,), **own}
    elif options.get("in_chans", 3) != 3:
        raise ValueError(f"in_chans of {name} must be 1 or 3, got {options['in_chans']}")
    return own


def _group_matcher(coarse: bool = False) -> dict[str, Any]:  # noqa: ARG001 (timm passes it)
    """Return the layers of a parameter by its name, as timm's layer-wise learning rates need it."""
    # 99999 means "in the group before" in timm: the last norm learns as fast as the last block.
    stem = r"^cls_token|^dist_token|^reg_token|^pos_embed|^patch_embed"
    return {"stem": stem, "blocks": [(r"^blocks\.(\d+)", None), (r"^norm|^fc_norm", (99999,))]}


register_models()
