"""Methods under autocast: the same layers and tokens as without, and nearly the same maps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from named_weights import fill, waves
from question_models import small_detector
from torch import nn

import visattn as va
from visattn.models import AttentionResNet, VisionTransformer
from visattn.recording.subject import analyze_model

CLASSES = ("ant", "bee", "cat")
PHOTO = waves(1, 3, 61, 83)[0].permute(1, 2, 0).numpy()
METHODS = {
    "cnn": ("gradcam", "ablationcam", "eigencam", "input_gradient", "gates"),
    "vit": ("attention", "rollout", "relevance", "legrad", "gradcam"),
    "detr": ("gradcam", "attention"),
}


def cnn() -> nn.Module:
    return fill(AttentionResNet(CLASSES, depth=8, stem_width=4, img_size=(40, 56), block="cbam"))


def vit() -> nn.Module:
    model = VisionTransformer(
        CLASSES, img_size=(40, 56), patch_size=8, embed_dim=12, depth=2, num_heads=3
    )
    return fill(model)


def torchvision_vit() -> nn.Module:
    torch.manual_seed(1)
    return torchvision.models.VisionTransformer(64, 16, 2, 3, 48, 96, num_classes=3).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, torch.dtype]] = {
    "cnn": (cnn, "bee", torch.float16),
    "vit": (vit, "bee", torch.bfloat16),
    "detr": (small_detector, va.QueryTarget(3, label="dog"), torch.float16),
}


@pytest.mark.parametrize("name", MODELS)
def test_autocast_changes_the_rounding_alone(name: str) -> None:
    create, target, dtype = MODELS[name]
    plain_one, other = va.Explainer(create()), va.Explainer(create())
    for method in METHODS[name]:
        chosen = None if method in ("eigencam", "gates") else target
        [plain] = plain_one.explain(PHOTO, method, chosen)
        with torch.autocast("cpu", dtype):  # also while it is analyzed
            [rounded] = other.explain(PHOTO, method, chosen)
        assert rounded.values.dtype == torch.float32
        assert rounded.values.shape == plain.values.shape
        assert rounded.info.more.get("rows") == plain.info.more.get("rows")
        for key in ("layer", "target", "class_name", "empty"):
            assert getattr(rounded.info, key) == getattr(plain.info, key), (method, key)
        both = torch.stack([plain.values.flatten(), rounded.values.flatten()]).double()
        if (both.std(1) > 0).all():
            assert torch.corrcoef(both)[0, 1] > 0.9, (method, dtype)


def test_a_model_with_a_fast_path_is_analyzed_without_autocast() -> None:
    expected = analyze_model(torchvision_vit()).info
    with torch.autocast("cpu", torch.bfloat16):
        assert analyze_model(torchvision_vit()).info == expected
