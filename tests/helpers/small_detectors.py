"""A small detector."""

from typing import Any

import torch

from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR


def small_detector() -> DETR:
    """Return an untrained detector whose boxes differ from each other."""
    torch.manual_seed(4)
    model = DETR(
        ("cat", "dog"),
        SmallEncoder((24, 40), channels=8),
        dim=16, num_queries=5, num_heads=2, num_encoder_layers=0, num_decoder_layers=2,
        mlp_ratio=4.0,
    )  # fmt: skip
    with torch.no_grad():
        heads: Any = model.heads
        heads.boxes[-1].weight.normal_()
        heads.classes.bias.zero_()
    return model.eval()
