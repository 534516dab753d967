"""Vision Transformers of torchvision as ours and back."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torchvision.models import get_model, list_models
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionTransformer

from visattn.models.serialization.state_dict_mapping import (
    Parts,
    check_options,
    head_names,
    renamed,
    renamed_key,
    weights_of,
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


def torchvision_parts(
    model: nn.Module | str, classes: Sequence[str] | None = None, **options: Any
) -> Parts:
    """Return the arguments and the weights of ours that compute what a ViT of torchvision does.

    Args:
        model: Of torchvision, or its name, such as `vit_b_16`; by name it gets fresh weights unless
            `weights`, as torchvision names them, is among the options.
        classes: Names of the classes; if there are not as many as the head has, a new head is
            drawn. By default its numbers.
        **options: Of ours, to change, as `drop_path`; `weights` as above.

    Raises:
        ValueError: If the name is unknown, or the model has an option that ours lacks.
    """
    weights = options.pop("weights", None)
    if isinstance(model, str):
        if model not in list_models(include="vit_*"):
            raise ValueError(
                f"torchvision's ViTs are {list_models(include='vit_*')}, got {model!r}"
            )
        model = get_model(model, weights=weights)
    if type(model) is not TorchvisionTransformer:
        raise ValueError(
            f"only torchvision's VisionTransformer goes over, got {type(model).__name__}"
        )
    in_the_way = {
        "representation_size": model.representation_size is not None,
        "conv_stem_configs": not isinstance(model.conv_proj, nn.Conv2d),
        "dropout": model.dropout > 0,
        "attention_dropout": model.attention_dropout > 0,
        "norm_layer": not isinstance(model.encoder.ln, nn.LayerNorm),
    }
    if found := [option for option, stands in in_the_way.items() if stands]:
        raise ValueError(
            f"this VisionTransformer cannot go over: ours has no such thing as its "
            f"{', '.join(found)}"
        )
    state = renamed(weights_of(model), _NAMES)
    named, state = head_names(state, classes, model.num_classes)
    layers: Any = model.encoder.layers
    arguments = {
        "classes": named,
        "size": (model.image_size, model.image_size),
        "patch": model.patch_size,
        "width": model.hidden_dim,
        "depth": len(layers),
        "heads": layers[0].num_heads,
        "ratio": model.mlp_dim / model.hidden_dim,
        "epsilon": layers[0].ln_1.eps,
    }
    return arguments | options, state


def torchvision_model(model: nn.Module) -> nn.Module:
    """Return the ViT of torchvision that computes what ours does, with its weights.

    Raises:
        ValueError: If ours has an option that torchvision's lacks: all of these are named.
    """
    ours: Any = model
    check_options(
        ours,
        "torchvision's VisionTransformer",
        stem=("patch",),
        size=((ours.size[0], ours.size[0]),),
        patch=((ours.patch[0], ours.patch[0]),),
        positions=("learned",),
        prefix_positions=(True,),
        attend=("full",),
        pool=("class",),
        distilled=(False,),
        registers=(0,),
        norm_after=(False,),
        feed_forward=("mlp",),
        qkv_bias=(True,),
        qk_norm=(False,),
        locality=(False,),
        layer_scale=(None,),
    )
    if len(ours.mean) != 3:
        raise ValueError("torchvision's VisionTransformer takes colors, and ours gray images")
    theirs = TorchvisionTransformer(
        image_size=ours.size[0],
        patch_size=ours.patch[0],
        num_layers=ours.depth,
        num_heads=ours.heads,
        hidden_dim=ours.width,
        mlp_dim=round(ours.width * ours.ratio),
        num_classes=len(ours.classes),
        norm_layer=partial(nn.LayerNorm, eps=ours.epsilon),
    )
    names = {ours: name for name in theirs.state_dict() for ours in [renamed_key(name, _NAMES)]}
    theirs.load_state_dict({names[key]: value for key, value in ours.state_dict().items()})
    return theirs
