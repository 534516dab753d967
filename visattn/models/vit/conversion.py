"""Conversion of Vision Transformers from timm, torchvision and DINOv2, and back."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from timm.layers.attention import Attention
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.drop import DropPath
from timm.layers.mlp import GluMlp, Mlp, SwiGLUPacked
from timm.layers.norm import LayerNorm
from timm.layers.patch_embed import PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionTransformer

from visattn.models.saving.mapping import (
    ConvertedModel,
    check_supported_options,
    copy_state_dict,
    match_head,
    refuse_unsupported,
    rename_key,
    rename_keys,
    resolve_timm_model,
    resolve_torchvision_model,
)

_WRAPPER = "TimmClassifier wraps any timm model unchanged"
_POOLS = {"token": "class", "avg": "mean", "map": "attention"}


def vit_from_timm(
    model: nn.Module | str, class_names: Sequence[str] | None = None, **options: Any
) -> ConvertedModel:
    """Return the arguments and the weights of the `VisionTransformer` that equals a timm model.

    Supported are ViT, DeiT, distilled DeiT, ViTs with registers, timm's DINOv2 and similar models
    with class token, mean or attention pooling.

    Args:
        model: A timm model, or its name; a named model has random weights unless `pretrained` is
            among the options.
        class_names: Names of the classes; if their number differs from that of the head, or there
            is no head, a new head is initialized. By default the class indices.
        **options: Arguments of `VisionTransformer` to override, such as `img_size` or
            `drop_path_rate`; and `pretrained`, to download timm's weights.

    Raises:
        ValueError: If the name is unknown, the model has no head and there are no class names, or
            it has options that `VisionTransformer` lacks; all of them are listed.
    """
    model = resolve_timm_model(model, pretrained=options.pop("pretrained", False))
    _check_supported(model)
    timm_model: Any = model
    names, state = match_head(copy_state_dict(model), class_names, timm_model.num_classes)
    return {"class_names": names, **_visattn_arguments(timm_model), **options}, state


def _visattn_arguments(timm_model: Any) -> dict[str, Any]:
    """Return the arguments of the equivalent `VisionTransformer`."""
    first = timm_model.blocks[0]
    last = timm_model.blocks[-1]
    embed = timm_model.patch_embed
    channels = embed.proj.in_channels
    config = getattr(timm_model, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5, 0.5, 0.5)) for name in ("mean", "std"))
    norm = timm_model.fc_norm if isinstance(timm_model.norm, nn.Identity) else timm_model.norm
    return {
        # The size of the position embedding: that of a padding model may lie between two grids.
        "img_size": tuple(n * p for n, p in zip(embed.grid_size, embed.patch_size, strict=True)),
        "patch_size": tuple(embed.patch_size),
        "embed_dim": timm_model.embed_dim,
        "depth": len(timm_model.blocks),
        "num_heads": first.attn.num_heads,
        "mlp_ratio": first.mlp.fc2.in_features / timm_model.embed_dim,
        "ffn_layer": "mlp" if isinstance(first.mlp, Mlp) else "swiglu",
        "pos_embed_type": "none" if timm_model.pos_embed is None else "learned",
        "pos_embed_prefix": not timm_model.no_embed_class,
        "global_pool": _POOLS[timm_model.global_pool],
        "class_token": timm_model.cls_token is not None,
        "distilled": isinstance(timm_model, VisionTransformerDistilled),
        "num_registers": timm_model.num_reg_tokens,
        "use_fc_norm": isinstance(timm_model.norm, nn.Identity),
        "qkv_bias": first.attn.qkv.bias is not None,
        "qk_norm": not isinstance(first.attn.q_norm, nn.Identity),
        "layer_scale": getattr(first.ls1, "init_values", None),
        "drop_path_rate": last.drop_path1.drop_prob
        if isinstance(last.drop_path1, DropPath)
        else 0.0,
        "patch_drop_rate": getattr(timm_model.patch_drop, "prob", 0.0),
        "dynamic_img_pad": bool(embed.dynamic_img_pad),
        "grad_checkpointing": bool(timm_model.grad_checkpointing),
        "norm_eps": norm.eps,
        "mean": tuple(mean[:channels]),
        "std": tuple(std[:channels]),
    }


def _check_supported(model: nn.Module) -> None:
    """Check that `VisionTransformer` has all options that a timm model uses."""
    if type(model) not in (TimmVisionTransformer, VisionTransformerDistilled):
        raise ValueError(
            "only timm's VisionTransformer and VisionTransformerDistilled can be converted, got "
            f"{type(model).__name__}; {_WRAPPER}"
        )
    timm_model: Any = model
    block = timm_model.blocks[0]
    is_known = type(block) is Block
    unsupported = _unsupported_block_options(block) if is_known else {"block_fn": True}
    unsupported |= {
        "embed_layer": type(timm_model.patch_embed) is not PatchEmbed,
        "embed_norm_layer": not isinstance(timm_model.patch_embed.norm, nn.Identity),
        "pre_norm": not isinstance(timm_model.norm_pre, nn.Identity),
        "final_norm": isinstance(timm_model.norm, nn.Identity)
        and isinstance(timm_model.fc_norm, nn.Identity),
        "global_pool": timm_model.global_pool not in _POOLS,
        "pool_include_prefix": timm_model.pool_include_prefix,
        "reg_tokens": timm_model.num_reg_tokens > 8,
        "in_chans": timm_model.patch_embed.proj.in_channels not in (1, 3),
        "drop_rate": timm_model.head_drop.p > 0,
        "pos_drop_rate": timm_model.pos_drop.p > 0,
        "attn_pool": timm_model.attn_pool is not None
        and type(timm_model.attn_pool) is not AttentionPoolLatent,
    }
    refuse_unsupported(unsupported, type(model).__name__, f"; {_WRAPPER}")


def _unsupported_block_options(block: Any) -> dict[str, bool]:
    """Return for each unsupported option whether a layer uses it."""
    attention = block.attn
    mlp = block.mlp
    if type(attention) is not Attention:
        return {"attn_layer": True}
    swiglu = isinstance(mlp, GluMlp) and isinstance(mlp.act, nn.SiLU) and not mlp.gate_last
    gelu = isinstance(mlp, Mlp) and isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    return {
        "norm_layer": not isinstance(block.norm1, nn.LayerNorm),
        "scale_attn_norm": not isinstance(attention.norm, nn.Identity),
        "gated": getattr(attention, "gate", None) is not None,
        "proj_bias": attention.proj.bias is None,
        "attn_drop_rate": attention.attn_drop.p > 0,
        "proj_drop_rate": attention.proj_drop.p > 0,
        "mlp_layer": not isinstance(mlp, Mlp | GluMlp),
        "act_layer": isinstance(mlp, Mlp | GluMlp) and not (swiglu or gelu),
        "scale_mlp_norm": not isinstance(getattr(mlp, "norm", nn.Identity()), nn.Identity),
    }


def vit_to_timm(model: nn.Module) -> nn.Module:
    """Return the equivalent timm model with the weights of a `VisionTransformer`."""
    vit: Any = model
    check_supported_options(
        vit,
        "timm's VisionTransformer",
        stem=("patch",),
        pos_embed_type=("learned", "none"),
        global_pool=("class", "mean", "attention"),
        attn_type=("full",),
        lsa=(False,),
    )
    if vit.distilled and vit.num_registers:
        raise ValueError(
            "timm's VisionTransformerDistilled has no registers, so this model cannot be converted"
        )
    timm_class: Any = VisionTransformerDistilled if vit.distilled else TimmVisionTransformer
    timm_model = timm_class(**_timm_arguments(vit))
    timm_model.load_state_dict(vit.state_dict())
    return timm_model


def _timm_arguments(vit: Any) -> dict[str, Any]:
    """Return how timm's is to be built."""
    gated = vit.ffn_layer == "swiglu"
    return {
        "img_size": tuple(n * p for n, p in zip(vit.grid_size, vit.patch_size, strict=True)),
        "patch_size": vit.patch_size,
        "in_chans": len(vit.mean),
        "num_classes": len(vit.class_names),
        "global_pool": {name: timm_name for timm_name, name in _POOLS.items()}[vit.global_pool],
        "embed_dim": vit.embed_dim,
        "depth": vit.depth,
        "num_heads": vit.num_heads,
        # timm truncates to an integer, and counts both halves of a gated layer.
        "mlp_ratio": (round(vit.embed_dim * vit.mlp_ratio) + 0.25) * (1 + gated) / vit.embed_dim,
        "mlp_layer": SwiGLUPacked if gated else Mlp,
        "act_layer": nn.SiLU if gated else nn.GELU,
        "qkv_bias": vit.qkv_bias,
        "qk_norm": vit.qk_norm,
        "init_values": vit.layer_scale,
        "class_token": vit.class_token,
        "pos_embed": "learn" if vit.pos_embed_type == "learned" else "none",
        "no_embed_class": not vit.pos_embed_prefix,
        "reg_tokens": vit.num_registers,
        "fc_norm": vit.use_fc_norm,
        "dynamic_img_size": True,
        "dynamic_img_pad": vit.dynamic_img_pad,
        "patch_drop_rate": vit.patch_drop_rate,
        "drop_path_rate": vit.drop_path_rate,
        "norm_layer": partial(LayerNorm, eps=vit.norm_eps),
    }


_LAYER = r"encoder\.layers\.encoder_layer_(\d+)\."


_TORCHVISION_NAMES = {
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
    source: Any = resolve_torchvision_model(
        model, TorchvisionTransformer, include="vit_*", weights=weights
    )
    unsupported = {
        "representation_size": source.representation_size is not None,
        "conv_stem_configs": not isinstance(source.conv_proj, nn.Conv2d),
        "dropout": source.dropout > 0,
        "attention_dropout": source.attention_dropout > 0,
        "norm_layer": not isinstance(source.encoder.ln, nn.LayerNorm),
    }
    refuse_unsupported(unsupported, "torchvision VisionTransformer")
    state = rename_keys(copy_state_dict(source), _TORCHVISION_NAMES)
    class_names, state = match_head(state, class_names, source.num_classes)
    layers = source.encoder.layers
    arguments = {
        "class_names": class_names,
        "img_size": (source.image_size, source.image_size),
        "patch_size": source.patch_size,
        "embed_dim": source.hidden_dim,
        "depth": len(layers),
        "num_heads": layers[0].num_heads,
        "mlp_ratio": source.mlp_dim / source.hidden_dim,
        "norm_eps": layers[0].ln_1.eps,
    }
    return arguments | options, state


def vit_to_torchvision(model: nn.Module) -> nn.Module:
    """Return the equivalent torchvision model with the weights of a `VisionTransformer`."""
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
    names = {rename_key(name, _TORCHVISION_NAMES): name for name in converted.state_dict()}
    converted.load_state_dict({names[key]: value for key, value in vit.state_dict().items()})
    return converted


_DINOV2_NAMES = {
    r"(blocks\.\d+\.mlp)\.w12\.(\w+)": r"\1.fc1.\2",
    r"(blocks\.\d+\.mlp)\.w3\.(\w+)": r"\1.fc2.\2",
}
_REQUIRED_KEYS = {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.ls1.gamma"}


def vit_from_dinov2(
    state: Mapping[str, Tensor],
    class_names: Sequence[str],
    *,
    img_size: tuple[int, int] = (518, 518),
    num_heads: int | None = None,
    **options: Any,
) -> ConvertedModel:
    """Return the arguments and weights of the `VisionTransformer` that equals a DINOv2 model.

    The mask token is dropped and a new head is initialized. With registers, the position embedding
    of the class token is added to the class token, because registers have no positions.

    Args:
        state: State dict as published.
        class_names: Names of the classes.
        img_size: Height and width of the images that the position embedding is for.
        num_heads: Number of attention heads; by default, heads have dimension 64.
        **options: Arguments of `VisionTransformer` to override.

    Raises:
        ValueError: If this is not a DINOv2 state dict, or the image size does not fit its position
            embedding.
    """
    weights = rename_keys(
        {key: value for key, value in state.items() if key != "mask_token"}, _DINOV2_NAMES
    )
    if missing := _REQUIRED_KEYS - set(weights):
        raise ValueError(
            f"this is not a DINOv2 state dict: {', '.join(sorted(missing))} are missing"
        )
    patch_size = tuple(weights["patch_embed.proj.weight"].shape[2:])
    num_patches = weights["pos_embed"].shape[1] - 1
    if (img_size[0] // patch_size[0]) * (img_size[1] // patch_size[1]) != num_patches:
        raise ValueError(
            f"the position embedding has {num_patches} patches, which does not fit patches of "
            f"{patch_size[0]} x {patch_size[1]} on images of {img_size[0]} x {img_size[1]}: set "
            "img_size"
        )
    embed_dim = weights["cls_token"].shape[-1]
    num_registers = 0
    if "register_tokens" in weights:
        weights["reg_token"] = weights.pop("register_tokens")
        num_registers = weights["reg_token"].shape[1]
        weights["cls_token"] = weights["cls_token"] + weights["pos_embed"][:, :1]
        weights["pos_embed"] = weights["pos_embed"][:, 1:]
    hidden_dim = weights["blocks.0.mlp.fc2.weight"].shape[1]
    arguments = {
        "class_names": tuple(class_names),
        "img_size": img_size,
        "patch_size": patch_size,
        "embed_dim": embed_dim,
        "depth": 1 + max(int(key.split(".")[1]) for key in weights if key.startswith("blocks.")),
        "num_heads": num_heads or embed_dim // 64,
        "mlp_ratio": hidden_dim / embed_dim,
        "ffn_layer": "mlp"
        if weights["blocks.0.mlp.fc1.weight"].shape[0] == hidden_dim
        else "swiglu",
        "num_registers": num_registers,
        "pos_embed_prefix": num_registers == 0,
        "layer_scale": 1e-5,
        "pos_interpolation": "timm" if num_registers else "dino",
    }
    return arguments | options, weights
