"""Conversion of Vision Transformers between torchvision and visattn."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torchvision.models import get_model, list_models
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionTransformer

from visattn.models.serialization.state_dict_mapping import (
    ConvertedModel,
    check_supported_options,
    copy_state_dict,
    match_head,
    rename_key,
    rename_keys,
)

_LAYER = r"encoder\.layers\.encoder_layer_(\d+)\."
_NAMES = {
    r"class_token": "cls_token",
    r"conv_proj\.(\w+)": r"patch_embed.proj.\1",
    r"encoder\.pos_embedding": "pos_embed",
    _LAYER + r"ln_([12])\.(\w+)": r"blocks.\1.norm\2.\3",
    _LAYER + r"self_attention\.in_proj_(\w+)": r"blocks.\1.attn.qkv.\2",
    _LAYER + r"self_attention\.out_proj\.(\w+)": r"blocks.\1.attn.proj.\2",
    _LAYER + r"mlp\.0\.(\w+)": r"blocks.\1.mlp.fc1.\2",
    _LAYER + r"mlp\.3\.(\w+)": r"blocks.\1.mlp.fc2.\2",
    r"encoder\.ln\.(\w+)": r"norm.\1",
    r"heads\.head\.(\w+)": r"head.\1",
}


def vit_from_torchvision(
    model: nn.Module | str, class_names: Sequence[str] | None = None, **options: Any
) -> ConvertedModel:
    """Return the arguments and weights of the `VisionTransformer` that equals a torchvision ViT.

    Args:
        model: A torchvision model, or its name, such as `vit_b_16`; a named model has random
            weights unless `weights`, as torchvision names them, is among the options.
        class_names: Names of the classes; if their number differs from that of the head, a new
            head is initialized. By default the class indices.
        **options: Arguments of `VisionTransformer` to override, such as `drop_path_rate`; and
            `weights`, as above.

    Raises:
        ValueError: If the name is unknown, or the model has options that `VisionTransformer` lacks.
    """
    weights = options.pop("weights", None)
    if isinstance(model, str):
        if model not in list_models(include="vit_*"):
            raise ValueError(f"model must be one of {list_models(include='vit_*')}, got {model!r}")
        model = get_model(model, weights=weights)
    if type(model) is not TorchvisionTransformer:
        raise ValueError(
            f"only torchvision's VisionTransformer can be converted, got {type(model).__name__}"
        )
    unsupported = {
        "representation_size": model.representation_size is not None,
        "conv_stem_configs": not isinstance(model.conv_proj, nn.Conv2d),
        "dropout": model.dropout > 0,
        "attention_dropout": model.attention_dropout > 0,
        "norm_layer": not isinstance(model.encoder.ln, nn.LayerNorm),
    }
    if names := [option for option, is_used in unsupported.items() if is_used]:
        raise ValueError(
            "this torchvision VisionTransformer cannot be converted: visattn's does not support "
            f"its {', '.join(names)}"
        )
    state = rename_keys(copy_state_dict(model), _NAMES)
    class_names, state = match_head(state, class_names, model.num_classes)
    layers: Any = model.encoder.layers
    arguments = {
        "class_names": class_names,
        "img_size": (model.image_size, model.image_size),
        "patch_size": model.patch_size,
        "embed_dim": model.hidden_dim,
        "depth": len(layers),
        "num_heads": layers[0].num_heads,
        "mlp_ratio": model.mlp_dim / model.hidden_dim,
        "norm_eps": layers[0].ln_1.eps,
    }
    return arguments | options, state


def vit_to_torchvision(model: nn.Module) -> nn.Module:
    """Return the equivalent torchvision model with the weights of a `VisionTransformer`.

    Raises:
        ValueError: If the model uses options that torchvision lacks; all of them are listed.
    """
    vit: Any = model
    check_supported_options(
        vit,
        "torchvision's VisionTransformer",
        stem=("patch",),
        img_size=((vit.img_size[0], vit.img_size[0]),),
        patch_size=((vit.patch_size[0], vit.patch_size[0]),),
        pos_embed_type=("learned",),
        pos_embed_prefix=(True,),
        attn_type=("full",),
        global_pool=("class",),
        distilled=(False,),
        num_registers=(0,),
        use_fc_norm=(False,),
        ffn_layer=("mlp",),
        qkv_bias=(True,),
        qk_norm=(False,),
        lsa=(False,),
        layer_scale=(None,),
    )
    if len(vit.mean) != 3:
        raise ValueError(
            "torchvision's VisionTransformer takes RGB images, but this model takes gray images"
        )
    converted = TorchvisionTransformer(
        image_size=vit.img_size[0],
        patch_size=vit.patch_size[0],
        num_layers=vit.depth,
        num_heads=vit.num_heads,
        hidden_dim=vit.embed_dim,
        mlp_dim=round(vit.embed_dim * vit.mlp_ratio),
        num_classes=len(vit.class_names),
        norm_layer=partial(nn.LayerNorm, eps=vit.norm_eps),
    )
    names = {rename_key(name, _NAMES): name for name in converted.state_dict()}
    converted.load_state_dict({names[key]: value for key, value in vit.state_dict().items()})
    return converted
