"""Conversion of original DINOv2 state dicts to `VisionTransformer`."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from visattn.models.serialization.state_dict_mapping import ConvertedModel, rename_keys

_NAMES = {
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
        {key: value for key, value in state.items() if key != "mask_token"}, _NAMES
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
    embed_dim, num_registers = weights["cls_token"].shape[-1], 0
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
