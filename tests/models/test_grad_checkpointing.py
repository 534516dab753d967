"""Gradient checkpointing: the same gradients from fewer saved activations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.base import ImageClassifier
from visattn.models.vit import VisionTransformer

CLASSES = ("daisy", "rose", "tulip")
SIZE: dict[str, Any] = {"img_size": (32, 48)}
Build = Callable[..., ImageClassifier]


def vit(*, dropped: bool = False, **options: Any) -> ImageClassifier:
    options |= {"patch_size": 8, "embed_dim": 24, "depth": 7, "num_heads": 2}
    return VisionTransformer(CLASSES, **SIZE, drop_path_rate=0.5 * dropped, **options)


def timm_vit(*, dropped: bool = False, **options: Any) -> ImageClassifier:
    kwargs: dict[str, Any] = {"img_size": (32, 48), "depth": 7}
    if dropped:
        kwargs |= {"drop_path_rate": 0.5, "proj_drop_rate": 0.2}
    return TimmClassifier(CLASSES, "test_vit", **SIZE, timm_kwargs=kwargs, **options)


def timm_with_blocks(*, dropped: bool = False, **options: Any) -> ImageClassifier:
    kwargs = {"drop_path_rate": 0.5} if dropped else {}
    return TimmClassifier(
        CLASSES, "test_convnext", block="se", **SIZE, timm_kwargs=kwargs, **options
    )


def trained(build: Build, **options: Any) -> tuple[Tensor, list[Tensor], int]:
    """Return the logits, all gradients and the bytes of activations that were saved."""
    torch.manual_seed(1)
    model = build(**options).train()
    images = torch.randn(2, 3, 32, 48)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(2)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(images)
    bytes_saved = sum(sizes.values())
    logits.square().sum().backward()
    gradients = [weight.grad for weight in model.parameters()]
    return logits, [gradient for gradient in gradients if gradient is not None], bytes_saved


@pytest.mark.parametrize("dropped", [False, True], ids=["plain", "dropped"])
@pytest.mark.parametrize(("build", "factor"), [(vit, 6), (timm_vit, 4), (timm_with_blocks, 3)])
def test_equal_gradients_from_fewer_saved_activations(
    build: Build, factor: float, dropped: bool
) -> None:
    logits, gradients, usual = trained(build, dropped=dropped)
    same, recomputed, saved = trained(build, dropped=dropped, grad_checkpointing=True)
    assert torch.equal(logits, same)
    assert len(gradients) == len(recomputed) > 10
    for first, second in zip(gradients, recomputed, strict=True):
        assert torch.equal(first, second)
    assert usual > factor * saved > 0


def test_a_network_with_fixed_batch_norms_can_be_recomputed() -> None:
    TimmClassifier(CLASSES, "test_resnet", grad_checkpointing=True, freeze_bn=True)
