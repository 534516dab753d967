"""Models, inputs and files whose values the net keeps."""

from collections.abc import Callable
from typing import Any

import torch
from named_weights import waves
from torch import nn

import visattn as va
from visattn.models import DETR, AttentionResNet, SmallEncoder, UNet, VisionTransformer
from visattn.models.base import ImageEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.vqa.model import VQAModel

CLASSES = ("ant", "bee", "cat")


def resnet() -> nn.Module:
    return AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(40, 56), block="cbam")


def vit() -> nn.Module:
    return VisionTransformer(
        CLASSES, img_size=(40, 56), patch_size=8, embed_dim=12, depth=2, num_heads=3
    )


def detr() -> nn.Module:
    return DETR(
        CLASSES, SmallEncoder((40, 56), channels=12), dim=24, num_queries=7, num_heads=3,
        num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip


# Name: a model without weights of its own, and what is explained of it.
EXPLAINED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "resnet": (resnet, "bee"),
    "vit": (vit, "bee"),
    "detr": (detr, va.QueryTarget(3)),
}

WORDS = torch.tensor([[1, 4, 5, 4], [1, 5, 5, 0]])
LENGTHS = torch.tensor([4, 3])


def outputs(model: nn.Module, device: str = "cpu") -> Any:
    """Return what a model computes of two images, and of words if it reads them."""
    size = getattr(model, "img_size", (16, 40))
    channels = len(getattr(model, "mean", (0,) * 3))
    images = waves(2, channels, *size).to(device)
    words = WORDS.to(device)
    if isinstance(model, Captioner):
        features = model.encoder(images)
        forced = model.teacher_force(features, words, LENGTHS.to(device))
        captions = model.search(features, beam_size=3, max_length=5)
        return {"logits": forced.logits, "tokens": captions.tokens, "log_probs": captions.log_probs}
    if isinstance(model, VQAModel):
        return list(model(images, words))
    if isinstance(model, UNet):
        output = model.segment(images)
        return {"logits": output.logits[..., ::5, ::7], "gates": output.gates}
    if isinstance(model, ImageEncoder):
        features = model(images)
        return list(features) if isinstance(features, tuple) else features
    output: Any = model(images)
    return list(output) if isinstance(output, tuple) else output
