"""Conversion of Swin Transformers from timm and torchvision, and to timm."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from torch import nn
from torchvision.models.swin_transformer import (
    PatchMerging,
    ShiftedWindowAttention,
    SwinTransformer as TorchvisionSwin,
)

from visattn.blocks.transformer.swin_stage import fit_window
from visattn.models.saving.mapping import (
    ConvertedModel,
    TensorDict,
    copy_state_dict,
    match_head,
    refuse_unsupported,
    rename_keys,
    resolve_timm_model,
    resolve_torchvision_model,
)

_TABLE = ".relative_position_bias_table"
_FROM_TIMM = {r"patch_embed\.norm\.(\w+)": r"patch_norm.\1", r"head\.fc\.(\w+)": r"head.\1"}
_TO_TIMM = {r"patch_norm\.(\w+)": r"patch_embed.norm.\1", r"head\.(\w+)": r"head.fc.\1"}


def swin_from_timm(
    model: nn.Module | str, class_names: Sequence[str] | None = None, **options: Any
) -> ConvertedModel:
    """Return the arguments and the weights of the `SwinTransformer` that equals a timm model.

    For the arguments see `vit_from_timm`.
    """
    model = resolve_timm_model(model, pretrained=options.pop("pretrained", False))
    if type(model) is not TimmSwin:
        raise ValueError(
            f"only timm's SwinTransformer can be converted, got {type(model).__name__}; "
            "TimmClassifier wraps any timm model unchanged"
        )
    timm_model: Any = model
    arguments = _arguments_from_timm(timm_model)
    refuse_unsupported(_unsupported_timm_options(timm_model, arguments), "SwinTransformer")
    windows = [[block.attn.window_size for block in stage.blocks] for stage in timm_model.layers]
    state = _convert_bias_tables(rename_keys(copy_state_dict(timm_model), _FROM_TIMM), windows)
    names, state = match_head(state, class_names, timm_model.num_classes)
    return {"class_names": names, **arguments, **options}, state


def _arguments_from_timm(timm_model: Any) -> dict[str, Any]:
    """Return the arguments of the equivalent `SwinTransformer`."""
    embed = timm_model.patch_embed
    blocks = [block for stage in timm_model.layers for block in stage.blocks]
    embed_dim = embed.proj.out_channels
    channels = embed.proj.in_channels
    last_drop_path = blocks[-1].drop_path1
    config = getattr(timm_model, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5, 0.5, 0.5)) for name in ("mean", "std"))
    return {
        "img_size": tuple(n * p for n, p in zip(embed.grid_size, embed.patch_size, strict=True)),
        "patch_size": tuple(embed.patch_size),
        "embed_dim": embed_dim,
        "depths": tuple(len(stage.blocks) for stage in timm_model.layers),
        "num_heads": tuple(stage.blocks[0].attn.num_heads for stage in timm_model.layers),
        "window_size": tuple(max(block.window_size[axis] for block in blocks) for axis in (0, 1)),
        "mlp_ratio": blocks[0].mlp.fc1.out_features / embed_dim,
        "qkv_bias": blocks[0].attn.qkv.bias is not None,
        "drop_path_rate": last_drop_path.drop_prob if isinstance(last_drop_path, DropPath) else 0.0,
        "grad_checkpointing": bool(timm_model.layers[0].grad_checkpointing),
        "norm_eps": timm_model.norm.eps,
        "mean": tuple(mean[:channels]),
        "std": tuple(std[:channels]),
    }


def _unsupported_timm_options(timm_model: Any, arguments: dict[str, Any]) -> dict[str, bool]:
    """Return for each unsupported option whether the model uses it."""
    grid = timm_model.patch_embed.grid_size
    varying = dict.fromkeys(("window_size", "mlp_ratio"), False)
    for stage_index, stage in enumerate(timm_model.layers):
        grid = (-(-grid[0] // 2), -(-grid[1] // 2)) if stage_index else grid
        window, shift = fit_window(grid, arguments["window_size"])
        hidden_dim = round(arguments["embed_dim"] * 2**stage_index * arguments["mlp_ratio"])
        for index, block in enumerate(stage.blocks):
            expected = (window, shift if index % 2 else (0, 0))
            varying["window_size"] |= (block.window_size, block.shift_size) != expected
            varying["mlp_ratio"] |= block.mlp.fc1.out_features != hidden_dim
    first = timm_model.layers[0].blocks[0]
    attention = first.attn
    return {
        "embed_layer": type(timm_model.patch_embed) is not PatchEmbed,
        "norm_layer": not all(
            isinstance(norm, nn.LayerNorm)
            for norm in (timm_model.patch_embed.norm, first.norm1, timm_model.norm)
        ),
        "always_partition": first.always_partition,
        **varying,
        "head_dim": attention.qkv.out_features != 3 * arguments["embed_dim"],
        "global_pool": timm_model.global_pool != "avg",
        "in_chans": timm_model.patch_embed.proj.in_channels not in (1, 3),
        "drop_rate": timm_model.head.drop.p > 0,
        "attn_drop_rate": attention.attn_drop.p > 0,
        "proj_drop_rate": attention.proj_drop.p > 0,
    }


def swin_to_timm(model: nn.Module) -> nn.Module:
    """Return the equivalent timm model with the weights of a `SwinTransformer`."""
    swin: Any = model
    dims = [swin.embed_dim * 2**index for index in range(len(swin.depths))]
    timm_model = TimmSwin(
        img_size=tuple(n * p for n, p in zip(swin.grid_size, swin.patch_size, strict=True)),  # pyright: ignore[reportArgumentType]
        patch_size=swin.patch_size,
        in_chans=len(swin.mean),
        num_classes=len(swin.class_names),
        embed_dim=swin.embed_dim,
        depths=swin.depths,
        num_heads=swin.num_heads,
        window_size=swin.window_size,
        dynamic_img_size=True,
        # timm truncates to an integer.
        mlp_ratio=[(round(dim * swin.mlp_ratio) + 0.25) / dim for dim in dims],  # pyright: ignore[reportArgumentType]
        qkv_bias=swin.qkv_bias,
        drop_path_rate=swin.drop_path_rate,
        norm_layer=partial(nn.LayerNorm, eps=swin.norm_eps),  # pyright: ignore[reportArgumentType]
    )
    timm_model.patch_embed.dynamic_img_pad = swin.dynamic_img_pad
    state = rename_keys(swin.state_dict(), _TO_TIMM)
    for key in [key for key in state if key.endswith(".biases")]:
        table = state.pop(key).permute(1, 2, 0).flip(0, 1).flatten(0, 1)
        state[key.removesuffix(".biases") + _TABLE] = table
    timm_model.load_state_dict(state)
    return timm_model


def swin_from_torchvision(
    model: nn.Module | str,
    class_names: Sequence[str] | None = None,
    *,
    img_size: tuple[int, int] = (224, 224),
    **options: Any,
) -> ConvertedModel:
    """Return the arguments and weights of the `SwinTransformer` that equals a torchvision model.

    The logits agree on images of `img_size`. On other sizes they agree while windows tile the grid
    of each stage and no stage becomes smaller than a window, because the two models pad and shift
    differently. For the arguments see `vit_from_torchvision`.
    """
    weights = options.pop("weights", None)
    source: Any = resolve_torchvision_model(
        model, TorchvisionSwin, include="swin_[tsb]", weights=weights
    )
    stages = source.features[1::2]
    refuse_unsupported(_unsupported_torchvision_options(source), "SwinTransformer")
    arguments = _arguments_from_torchvision(source)
    _check_tiling(img_size, arguments["patch_size"], arguments["window_size"], len(stages))
    state = rename_keys(copy_state_dict(source), _torchvision_names(len(stages)))
    state = {key: value for key, value in state.items() if not key.endswith("_index")}
    windows = [[block.attn.window_size for block in stage] for stage in stages]
    state = _convert_bias_tables(state, windows)
    names, state = match_head(state, class_names, source.num_classes)
    return {"class_names": names, "img_size": img_size, **arguments, **options}, state


def _arguments_from_torchvision(source: Any) -> dict[str, Any]:
    """Return the arguments of the equivalent `SwinTransformer`."""
    conv = source.features[0][0]
    stages = source.features[1::2]
    first = stages[0][0]
    last = stages[-1][-1]
    return {
        "patch_size": conv.kernel_size,
        "embed_dim": conv.out_channels,
        "depths": tuple(len(stage) for stage in stages),
        "num_heads": tuple(stage[0].attn.num_heads for stage in stages),
        "window_size": tuple(first.attn.window_size),
        "mlp_ratio": first.mlp[0].out_features / conv.out_channels,
        "drop_path_rate": last.stochastic_depth.p,
        "norm_eps": source.norm.eps,
    }


def _unsupported_torchvision_options(source: Any) -> dict[str, bool]:
    """Return for each unsupported option whether the model uses it."""
    attention = source.features[1][0].attn
    return {
        "block": type(attention) is not ShiftedWindowAttention,
        "downsample_layer": any(type(merge) is not PatchMerging for merge in source.features[2::2]),
        "norm_layer": not isinstance(source.norm, nn.LayerNorm),
        "dropout": attention.dropout > 0,
        "attention_dropout": attention.attention_dropout > 0,
    }


def _torchvision_names(stages: int) -> dict[str, str]:
    """Return patterns of torchvision's keys and the keys that replace them."""
    names = {
        r"features\.0\.0\.(\w+)": r"patch_embed.proj.\1",
        r"features\.0\.2\.(\w+)": r"patch_norm.\1",
    }
    for number in range(stages):
        source = rf"features\.{2 * number + 1}\.(\d+)\."
        target = rf"layers.{number}.blocks.\1."
        names |= {
            source + r"mlp\.0\.(\w+)": target + r"mlp.fc1.\2",
            source + r"mlp\.3\.(\w+)": target + r"mlp.fc2.\2",
            source + r"(.+)": target + r"\2",
            rf"features\.{2 * number}\.(.+)": rf"layers.{number}.downsample.\1",
        }
    return names


def _check_tiling(
    img_size: tuple[int, int],
    patch_size: tuple[int, int],
    window_size: tuple[int, int],
    num_stages: int,
) -> None:
    """Check that windows tile the grid of each stage."""
    tiles = [side * 2 ** (num_stages - 1) for side in window_size]
    multiples = [tile * side for tile, side in zip(tiles, patch_size, strict=True)]
    if img_size[0] % multiples[0] or img_size[1] % multiples[1]:
        raise ValueError(
            f"the sides of img_size must be multiples of {multiples[0]} and {multiples[1]}, so "
            f"that windows tile all grids, got {img_size[0]} x {img_size[1]}; on other sizes "
            "torchvision's model pads differently"
        )


def _convert_bias_tables(
    state: TensorDict, windows: Sequence[Sequence[Sequence[int]]]
) -> TensorDict:
    """Return the state dict with relative position biases indexed by head and offset."""
    converted: TensorDict = {}
    for key, value in state.items():
        if key.endswith(_TABLE):
            _, stage, _, block, *_ = key.split(".")
            rows, columns = (2 * side - 1 for side in windows[int(stage)][int(block)])
            # timm and torchvision index by query minus key, `relative_position_bias` by key minus
            # query.
            table = value.unflatten(0, (rows, columns)).flip(0, 1).permute(2, 0, 1)
            converted[key.removesuffix(_TABLE) + ".biases"] = table.contiguous()
        else:
            converted[key] = value
    return converted
