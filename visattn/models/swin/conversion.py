"""Swin Transformers of timm and torchvision as ours, and back to timm."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from timm.layers.drop import DropPath
from timm.layers.patch_embed import PatchEmbed
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from torch import Tensor, nn
from torchvision.models import get_model, list_models
from torchvision.models.swin_transformer import PatchMerging, ShiftedWindowAttention
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

from visattn.blocks.transformer.swin_stage import fitted_window
from visattn.models.serialization.state_dict_mapping import (
    Parts,
    State,
    head_names,
    renamed,
    timm_network,
    weights_of,
)

_TABLE = ".relative_position_bias_table"
_FROM_TIMM = {r"patch_embed\.norm\.(\w+)": r"patch_norm.\1", r"head\.fc\.(\w+)": r"head.\1"}
_TO_TIMM = {r"patch_norm\.(\w+)": r"patch_embed.norm.\1", r"head\.(\w+)": r"head.fc.\1"}


def timm_swin_parts(
    model: nn.Module | str, classes: Sequence[str] | None = None, **options: Any
) -> Parts:
    """Return the arguments and the weights of ours that compute what a Swin of timm does.

    Args:
        model: Of timm, or its name, such as `swin_tiny_patch4_window7_224`; by name it gets fresh
            weights unless `pretrained` is among the options.
        classes: Names of the classes; if there are not as many as the head has, or it has none, a
            new head is drawn. By default its numbers.
        **options: Of ours, to change, as `drop_path` or `checkpointing`; `pretrained` to have the
            weights that timm downloads.

    Raises:
        ValueError: If the name is unknown, the model has no head and no classes are said, or it has
            an option that ours lacks: all of these are named.
    """
    model = timm_network(model, pretrained=options.pop("pretrained", False))
    if type(model) is not TimmSwin:
        raise ValueError(
            f"only timm's SwinTransformer goes over, got {type(model).__name__}; TimmClassifier "
            "takes any model of timm as it is"
        )
    theirs: Any = model
    arguments = _timm_arguments(theirs)
    _check(_timm_lacks(theirs, arguments))
    windows = [[block.attn.window_size for block in stage.blocks] for stage in theirs.layers]
    state = _with_biases(renamed(weights_of(theirs), _FROM_TIMM), windows)
    named, state = head_names(state, classes, theirs.num_classes)
    return {"classes": named, **arguments, **options}, state


def _timm_arguments(theirs: Any) -> dict[str, Any]:
    """Return how ours is to be built."""
    embed, blocks = theirs.patch_embed, [block for stage in theirs.layers for block in stage.blocks]
    width, channels, path = embed.proj.out_channels, embed.proj.in_channels, blocks[-1].drop_path1
    config = getattr(theirs, "pretrained_cfg", None) or {}
    mean, std = (config.get(name, (0.5, 0.5, 0.5)) for name in ("mean", "std"))
    return {
        "size": tuple(n * p for n, p in zip(embed.grid_size, embed.patch_size, strict=True)),
        "patch": tuple(embed.patch_size),
        "width": width,
        "depths": tuple(len(stage.blocks) for stage in theirs.layers),
        "heads": tuple(stage.blocks[0].attn.num_heads for stage in theirs.layers),
        "window": tuple(max(block.window_size[axis] for block in blocks) for axis in (0, 1)),
        "ratio": blocks[0].mlp.fc1.out_features / width,
        "qkv_bias": blocks[0].attn.qkv.bias is not None,
        "drop_path": path.drop_prob if isinstance(path, DropPath) else 0.0,
        "checkpointing": bool(theirs.layers[0].grad_checkpointing),
        "epsilon": theirs.norm.eps,
        "mean": tuple(mean[:channels]),
        "std": tuple(std[:channels]),
    }


def _timm_lacks(theirs: Any, ours: dict[str, Any]) -> dict[str, bool]:
    """Return which of its options are in the way."""
    grid, others = theirs.patch_embed.grid_size, dict.fromkeys(("window_size", "mlp_ratio"), False)
    for number, stage in enumerate(theirs.layers):
        grid = (-(-grid[0] // 2), -(-grid[1] // 2)) if number else grid
        window, shift = fitted_window(grid, ours["window"])
        for place, block in enumerate(stage.blocks):
            moved = shift if place % 2 else (0, 0)
            others["window_size"] |= (block.window_size, block.shift_size) != (window, moved)
            width = ours["width"] * 2**number
            others["mlp_ratio"] |= block.mlp.fc1.out_features != round(width * ours["ratio"])
    first, attend = theirs.layers[0].blocks[0], theirs.layers[0].blocks[0].attn
    return {
        "embed_layer": type(theirs.patch_embed) is not PatchEmbed,
        "norm_layer": not all(
            isinstance(norm, nn.LayerNorm)
            for norm in (theirs.patch_embed.norm, first.norm1, theirs.norm)
        ),
        "always_partition": first.always_partition,
        **others,
        "head_dim": attend.qkv.out_features != 3 * ours["width"],
        "global_pool": theirs.global_pool != "avg",
        "in_chans": theirs.patch_embed.proj.in_channels not in (1, 3),
        "drop_rate": theirs.head.drop.p > 0,
        "attn_drop_rate": attend.attn_drop.p > 0,
        "proj_drop_rate": attend.proj_drop.p > 0,
    }


def timm_swin_model(model: nn.Module) -> nn.Module:
    """Return the Swin Transformer of timm that computes what ours does, with its weights."""
    ours: Any = model
    widths = [ours.width * 2**number for number in range(len(ours.depths))]
    theirs = TimmSwin(
        img_size=tuple(n * p for n, p in zip(ours.grid, ours.patch, strict=True)),  # pyright: ignore[reportArgumentType]
        patch_size=ours.patch,
        in_chans=len(ours.mean),
        num_classes=len(ours.classes),
        embed_dim=ours.width,
        depths=ours.depths,
        num_heads=ours.heads,
        window_size=ours.window,
        dynamic_img_size=True,
        # timm cuts off what comes after the point.
        mlp_ratio=[(round(width * ours.ratio) + 0.25) / width for width in widths],  # pyright: ignore[reportArgumentType]
        qkv_bias=ours.qkv_bias,
        drop_path_rate=ours.drop_path,
        norm_layer=partial(nn.LayerNorm, eps=ours.epsilon),  # pyright: ignore[reportArgumentType]
    )
    theirs.patch_embed.dynamic_img_pad = ours.pad
    state = renamed(ours.state_dict(), _TO_TIMM)
    for key in [key for key in state if key.endswith(".biases")]:
        table = state.pop(key).permute(1, 2, 0).flip(0, 1).flatten(0, 1)
        state[key.removesuffix(".biases") + _TABLE] = table
    theirs.load_state_dict(state)
    return theirs


def torchvision_swin_parts(
    model: nn.Module | str,
    classes: Sequence[str] | None = None,
    *,
    size: tuple[int, int] = (224, 224),
    **options: Any,
) -> Parts:
    """Return the arguments and the weights of ours that compute what a Swin of torchvision does.

    Scores agree on images of the size that ours is made for. On others they do while windows
    tile all grids and one covers the same sides as before: both fill up and move in other ways.

    Args:
        model: Of torchvision, or its name, such as `swin_t`; by name it gets fresh weights unless
            `weights`, as torchvision names them, is among the options.
        classes: Names of the classes; if there are not as many as the head has, a new head is
            drawn. By default its numbers.
        size: Height and width of the images it is made for; windows must tile their grids.
        **options: Of ours, to change, as `drop_path`; `weights` as above.

    Raises:
        ValueError: If the name is unknown, the model has an option that ours lacks, or windows do
            not tile the grid of each stage.
    """
    weights = options.pop("weights", None)
    names = list_models(include="swin_[tsb]")
    if isinstance(model, str):
        if model not in names:
            raise ValueError(f"torchvision's Swin Transformers are {names}, got {model!r}")
        model = get_model(model, weights=weights)
    if type(model) is not TorchvisionSwin:
        raise ValueError(
            f"only torchvision's SwinTransformer goes over, got {type(model).__name__}"
        )
    theirs: Any = model
    stages = theirs.features[1::2]
    _check(_torchvision_lacks(theirs))
    arguments = _torchvision_arguments(theirs)
    _check_tiled(size, arguments["patch"], arguments["window"], len(stages))
    state = renamed(weights_of(theirs), _torchvision_names(len(stages)))
    state = {key: value for key, value in state.items() if not key.endswith("_index")}
    windows = [[block.attn.window_size for block in stage] for stage in stages]
    named, state = head_names(_with_biases(state, windows), classes, theirs.num_classes)
    return {"classes": named, "size": size, **arguments, **options}, state


def _torchvision_arguments(theirs: Any) -> dict[str, Any]:
    """Return how ours is to be built."""
    conv, stages = theirs.features[0][0], theirs.features[1::2]
    first, last = stages[0][0], stages[-1][-1]
    return {
        "patch": conv.kernel_size,
        "width": conv.out_channels,
        "depths": tuple(len(stage) for stage in stages),
        "heads": tuple(stage[0].attn.num_heads for stage in stages),
        "window": tuple(first.attn.window_size),
        "ratio": first.mlp[0].out_features / conv.out_channels,
        "drop_path": last.stochastic_depth.p,
        "epsilon": theirs.norm.eps,
    }


def _torchvision_lacks(theirs: Any) -> dict[str, bool]:
    """Return which of its options are in the way."""
    attend = theirs.features[1][0].attn
    return {
        "block": type(attend) is not ShiftedWindowAttention,
        "downsample_layer": any(type(merge) is not PatchMerging for merge in theirs.features[2::2]),
        "norm_layer": not isinstance(theirs.norm, nn.LayerNorm),
        "dropout": attend.dropout > 0,
        "attention_dropout": attend.attention_dropout > 0,
    }


def _torchvision_names(stages: int) -> dict[str, str]:
    """Return patterns of torchvision's names, and what ours are."""
    names = {
        r"features\.0\.0\.(\w+)": r"patch_embed.proj.\1",
        r"features\.0\.2\.(\w+)": r"patch_norm.\1",
    }
    for number in range(stages):
        block, ours = rf"features\.{2 * number + 1}\.(\d+)\.", rf"layers.{number}.blocks.\1."
        names |= {
            block + r"mlp\.0\.(\w+)": ours + r"mlp.fc1.\2",
            block + r"mlp\.3\.(\w+)": ours + r"mlp.fc2.\2",
            block + r"(.+)": ours + r"\2",
            rf"features\.{2 * number}\.(.+)": rf"layers.{number}.downsample.\1",
        }
    return names


def _check_tiled(
    size: tuple[int, int], patch: tuple[int, int], window: tuple[int, int], stages: int
) -> None:
    tiles = [cells * 2 ** (stages - 1) for cells in window]
    wanted = [tile * side for tile, side in zip(tiles, patch, strict=True)]
    if size[0] % wanted[0] or size[1] % wanted[1]:
        raise ValueError(
            f"windows tile all grids of images whose sides are multiples of {wanted[0]} and "
            f"{wanted[1]}, got {size[0]} x {size[1]}; on others torchvision's model computes "
            "something else than ours"
        )


def _with_biases(state: State, windows: Sequence[Sequence[Sequence[int]]]) -> State:
    """Return weights with a table of biases as ours: by head, and by offset from the query."""
    return dict(_one_by_one(state, windows))


def _one_by_one(
    state: State, windows: Sequence[Sequence[Sequence[int]]]
) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if key.endswith(_TABLE):
            _, stage, _, block, *_ = key.split(".")
            rows, columns = (2 * side - 1 for side in windows[int(stage)][int(block)])
            table = value.unflatten(0, (rows, columns)).flip(0, 1).permute(2, 0, 1)
            yield key.removesuffix(_TABLE) + ".biases", table.contiguous()
        else:
            yield key, value


def _check(in_the_way: dict[str, bool]) -> None:
    if found := [option for option, stands in in_the_way.items() if stands]:
        raise ValueError(
            f"this SwinTransformer cannot go over: ours has no such thing as its {', '.join(found)}"
        )
