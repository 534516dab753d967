"""Values of every attribution method on a CNN, transformers and a detector."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kept_values import Keep
from named_weights import fill, waves
from torch import nn

import visattn as va
from visattn.attribution import METHODS
from visattn.models import DETR, AttentionResNet, SmallEncoder, SwinTransformer, VisionTransformer

CLASSES = ("ant", "bee", "cat")


def resnet() -> nn.Module:
    return AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(40, 56), block="cbam")


def vit() -> nn.Module:
    return VisionTransformer(
        CLASSES, img_size=(40, 56), patch_size=8, embed_dim=12, depth=2, num_heads=3
    )


def swin() -> nn.Module:
    return SwinTransformer(
        CLASSES, img_size=(40, 48), patch_size=4, embed_dim=6, depths=(1, 2), num_heads=(1, 2),
        window_size=(5, 3),
    )  # fmt: skip


def detr() -> nn.Module:
    return DETR(
        CLASSES, SmallEncoder((40, 56), channels=12), dim=24, num_queries=7, num_heads=3,
        num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "resnet": (resnet, "bee"),
    "vit": (vit, "bee"),
    "swin": (swin, "bee"),
    "detr": (detr, va.QueryTarget(3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_maps_of_every_method(name: str, keep: Keep) -> None:
    create, target = MODELS[name]
    model = fill(create())
    maps = {method: _explained(model, method, target) for method in METHODS}
    assert sum("values" in each for each in maps.values()) > 5
    keep(f"methods/{name}", maps)


def _explained(model: nn.Module, method: str, target: Any) -> dict[str, Any]:
    """Return the map of a photo, or the reason why there is none."""
    photo = waves(1, 3, 61, 83)[0].permute(1, 2, 0).numpy()
    chosen = target if METHODS[method].needs_target else None
    torch.manual_seed(0)
    try:
        [heatmap] = va.explain(model, photo, method, chosen, keep_empty=True)
    except ValueError as reason:
        return {"refused": str(reason)}
    values = heatmap.values
    return {
        "values": values[tuple(slice(None, None, 1 + side // 12) for side in values.shape)],
        "size": list(values.shape),
        "matrix": heatmap.geometry.matrix if heatmap.geometry else None,
        "metadata": dict(heatmap.metadata),
    }
