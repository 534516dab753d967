"""Gradient checkpointing: the same gradients from fewer saved activations."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.vit import VisionTransformer

SIZES: dict[str, Any] = {"patch_size": 8, "embed_dim": 24, "depth": 7, "num_heads": 2}
DEEP = {"img_size": (32, 48), "depth": 7, "drop_path_rate": 0.5, "proj_drop_rate": 0.2}
BLOCKS: dict[str, Any] = {"block": "se", "timm_kwargs": {"drop_path_rate": 0.5}}
NETWORKS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "vit": (VisionTransformer, {**SIZES, "drop_path_rate": 0.5}, 6),
    "timm's vit": (TimmClassifier, {"name": "test_vit", "timm_kwargs": DEEP}, 4),
    "convnext with blocks": (TimmClassifier, {"name": "test_convnext", **BLOCKS}, 3),
}


def trained(kind: Any, options: dict[str, Any], *, again: bool) -> tuple[list[Tensor], int]:
    """Return all gradients and the bytes of activations that were saved."""
    torch.manual_seed(1)
    model = kind(("daisy", "rose"), img_size=(32, 48), **options, grad_checkpointing=again).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(torch.randn(2, 3, 32, 48))
    saved = sum(sizes.values())
    logits.square().sum().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None], saved


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_gradients_from_fewer_saved_activations(name: str) -> None:
    """With dropped branches, which are the same again."""
    kind, options, factor = NETWORKS[name]
    gradients, usual = trained(kind, options, again=False)
    recomputed, saved = trained(kind, options, again=True)
    assert len(gradients) == len(recomputed) > 10
    assert all(map(torch.equal, gradients, recomputed))
    assert usual > factor * saved > 0
