"""Vision Transformers of timm as ours and back: the same weights, and what cannot go over."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from timm.layers.attention import Attention
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.drop import DropPath
from timm.layers.mlp import GluMlp, Mlp, SwiGLUPacked
from timm.layers.norm import LayerNorm
from timm.layers.patch_embed import PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn

from visattn.models.serialization.state_dict_mapping import (
    Parts,
    check_options,
    head_names,
    timm_network,
    weights_of,
)

_POOLS = {"token": "class", "avg": "mean", "map": "attention"}


def timm_parts(
    model: nn.Module | str, classes: Sequence[str] | None = None, **options: Any
) -> Parts:
    """Return the arguments and the weights of ours that compute what a model of timm does.

    ViT, DeiT, distilled DeiT, ViTs with registers, those of DINOv2 in timm and others like them,
    with class token, mean or attention pooling; trained and in training alike.

    Args:
        model: Of timm, or its name; by name it gets fresh weights unless `pretrained` is among the
            options.
        classes: Names of the classes; if there are not as many as the head has, or it has none, a
            new head is drawn. By default its numbers.
        **options: Of ours, to change, as `size`, `drop_path` or `checkpointing`; `pretrained` to
            have the weights that timm downloads.

    Raises:
        ValueError: If the name is unknown, the model has no head and no classes are said, or it has
            an option that ours lacks: all of these are named.
    """
    theirs: Any = _checked(timm_network(model, pretrained=options.pop("pretrained", False)))
    named, state = head_names(weights_of(theirs), classes, theirs.num_classes)
    return {"classes": named, **_arguments(theirs), **options}, state


def _arguments(theirs: Any) -> dict[str, Any]:
    """Return how ours is to be built."""
    first, last = theirs.blocks[0], theirs.blocks[-1]
    width, registers = theirs.embed_dim, theirs.num_reg_tokens
    embed = theirs.patch_embed
    channels = embed.proj.in_channels
    config = getattr(theirs, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5, 0.5, 0.5)) for name in ("mean", "std"))
    norm = theirs.fc_norm if isinstance(theirs.norm, nn.Identity) else theirs.norm
    return {
        # That of its positions: a model that pads may be made for a size between two grids.
        "size": tuple(n * p for n, p in zip(embed.grid_size, embed.patch_size, strict=True)),
        "patch": tuple(embed.patch_size),
        "width": width,
        "depth": len(theirs.blocks),
        "heads": first.attn.num_heads,
        "ratio": first.mlp.fc2.in_features / width,
        "feed_forward": "mlp" if isinstance(first.mlp, Mlp) else "swiglu",
        "positions": "none" if theirs.pos_embed is None else "learned",
        "prefix_positions": not theirs.no_embed_class,
        "pool": _POOLS[theirs.global_pool],
        "class_token": theirs.cls_token is not None,
        "distilled": isinstance(theirs, VisionTransformerDistilled),
        "registers": registers,
        "norm_after": isinstance(theirs.norm, nn.Identity),
        "qkv_bias": first.attn.qkv.bias is not None,
        "qk_norm": not isinstance(first.attn.q_norm, nn.Identity),
        "layer_scale": getattr(first.ls1, "init_values", None),
        "drop_path": last.drop_path1.drop_prob if isinstance(last.drop_path1, DropPath) else 0.0,
        "patch_drop": getattr(theirs.patch_drop, "prob", 0.0),
        "pad": bool(embed.dynamic_img_pad),
        "checkpointing": bool(theirs.grad_checkpointing),
        "epsilon": norm.eps,
        "mean": tuple(mean[:channels]),
        "std": tuple(std[:channels]),
    }


def _checked(model: nn.Module) -> nn.Module:
    """Return the model if all that it has can go over."""
    if type(model) not in (TimmVisionTransformer, VisionTransformerDistilled):
        raise ValueError(
            f"only timm's VisionTransformer and VisionTransformerDistilled go over, got "
            f"{type(model).__name__}; TimmClassifier takes any model of timm as it is"
        )
    theirs: Any = model
    block = theirs.blocks[0]
    in_the_way = {"block_fn": type(block) is not Block}
    if not in_the_way["block_fn"]:
        in_the_way |= _block_options(block)
    in_the_way |= {
        "embed_layer": type(theirs.patch_embed) is not PatchEmbed,
        "embed_norm_layer": not isinstance(theirs.patch_embed.norm, nn.Identity),
        "pre_norm": not isinstance(theirs.norm_pre, nn.Identity),
        "final_norm": isinstance(theirs.norm, nn.Identity)
        and isinstance(theirs.fc_norm, nn.Identity),
        "global_pool": theirs.global_pool not in _POOLS,
        "pool_include_prefix": theirs.pool_include_prefix,
        "reg_tokens": theirs.num_reg_tokens > 8,
        "in_chans": theirs.patch_embed.proj.in_channels not in (1, 3),
        "drop_rate": theirs.head_drop.p > 0,
        "pos_drop_rate": theirs.pos_drop.p > 0,
        "attn_pool": theirs.attn_pool is not None
        and type(theirs.attn_pool) is not AttentionPoolLatent,
    }
    if found := [option for option, stands in in_the_way.items() if stands]:
        raise ValueError(
            f"this {type(model).__name__} cannot go over: ours has no such thing as its "
            f"{', '.join(found)}; TimmClassifier takes any model of timm as it is"
        )
    return model


def _block_options(block: Any) -> dict[str, bool]:
    """Return which options of a layer are in the way."""
    attention, mlp = block.attn, block.mlp
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


def timm_model(model: nn.Module) -> nn.Module:
    """Return the model of timm that computes what ours does, with its weights.

    Raises:
        ValueError: If ours has an option that timm's lacks: all of these are named.
    """
    ours: Any = model
    check_options(
        ours,
        "timm's VisionTransformer",
        stem=("patch",),
        positions=("learned", "none"),
        pool=("class", "mean", "attention"),
        attend=("full",),
        locality=(False,),
    )
    if ours.distilled and ours.registers:
        raise ValueError("timm's distilled model has no registers, so ours cannot go over")
    kind: Any = VisionTransformerDistilled if ours.distilled else TimmVisionTransformer
    theirs = kind(**_timm_arguments(ours))
    theirs.load_state_dict(ours.state_dict())
    return theirs


def _timm_arguments(ours: Any) -> dict[str, Any]:
    """Return how timm's is to be built."""
    gated = ours.feed_forward == "swiglu"
    return {
        "img_size": tuple(n * p for n, p in zip(ours.grid, ours.patch, strict=True)),
        "patch_size": ours.patch,
        "in_chans": len(ours.mean),
        "num_classes": len(ours.classes),
        "global_pool": {ours: theirs for theirs, ours in _POOLS.items()}[ours.pool],
        "embed_dim": ours.width,
        "depth": ours.depth,
        "num_heads": ours.heads,
        # timm cuts off what comes after the point, and counts both halves of a gated layer.
        "mlp_ratio": (round(ours.width * ours.ratio) + 0.25) * (1 + gated) / ours.width,
        "mlp_layer": SwiGLUPacked if gated else Mlp,
        "act_layer": nn.SiLU if gated else nn.GELU,
        "qkv_bias": ours.qkv_bias,
        "qk_norm": ours.qk_norm,
        "init_values": ours.layer_scale,
        "class_token": ours.class_token,
        "pos_embed": "learn" if ours.positions == "learned" else "none",
        "no_embed_class": not ours.prefix_positions,
        "reg_tokens": ours.registers,
        "fc_norm": ours.norm_after,
        "dynamic_img_size": True,
        "dynamic_img_pad": ours.pad,
        "patch_drop_rate": ours.patch_drop,
        "drop_path_rate": ours.drop_path,
        "norm_layer": partial(LayerNorm, eps=ours.epsilon),
    }
