"""Weights in the layout of DINOv2's authors as those of our Vision Transformer."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from visattn.models.serialization.state_dict_mapping import Parts, renamed

_NAMES = {
    r"(blocks\.\d+\.mlp)\.w12\.(\w+)": r"\1.fc1.\2",
    r"(blocks\.\d+\.mlp)\.w3\.(\w+)": r"\1.fc2.\2",
}
_NEEDED = {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.ls1.gamma"}


def dinov2_parts(
    state: Mapping[str, Tensor],
    classes: Sequence[str],
    *,
    size: tuple[int, int] = (518, 518),
    heads: int | None = None,
    **options: Any,
) -> Parts:
    """Return the arguments and the weights of ours for weights as the authors of DINOv2 lay them.

    The mask token is left behind, and a head for the classes drawn. With registers the class token
    takes its position in, since registers have none.

    Args:
        state: Weights as published.
        classes: Names of the classes.
        size: Height and width of the images whose positions the weights hold.
        heads: Of each layer; heads of width 64 if not said.
        **options: Of ours, to change.

    Raises:
        ValueError: If these are no such weights, or the size does not fit their positions.
    """
    rest = renamed({key: value for key, value in state.items() if key != "mask_token"}, _NAMES)
    if missing := _NEEDED - set(rest):
        raise ValueError(
            f"these are no weights of DINOv2's: {', '.join(sorted(missing))} are missing"
        )
    patch = tuple(rest["patch_embed.proj.weight"].shape[2:])
    cells = rest["pos_embed"].shape[1] - 1
    if (size[0] // patch[0]) * (size[1] // patch[1]) != cells:
        raise ValueError(
            f"there are {cells} positions, which patches of {patch[0]} x {patch[1]} on images of "
            f"{size[0]} x {size[1]} do not make; say size="
        )
    width, registers = rest["cls_token"].shape[-1], 0
    if "register_tokens" in rest:
        rest["reg_token"] = rest.pop("register_tokens")
        registers = rest["reg_token"].shape[1]
        rest["cls_token"] = rest["cls_token"] + rest["pos_embed"][:, :1]
        rest["pos_embed"] = rest["pos_embed"][:, 1:]
    hidden = rest["blocks.0.mlp.fc2.weight"].shape[1]
    arguments = {
        "classes": tuple(classes),
        "size": size,
        "patch": patch,
        "width": width,
        "depth": 1 + max(int(key.split(".")[1]) for key in rest if key.startswith("blocks.")),
        "heads": heads or width // 64,
        "ratio": hidden / width,
        "feed_forward": "mlp" if rest["blocks.0.mlp.fc1.weight"].shape[0] == hidden else "swiglu",
        "registers": registers,
        "prefix_positions": registers == 0,
        "layer_scale": 1e-5,
        "resample": "timm" if registers else "dino",
    }
    return arguments | options, rest
