"""Methods under autocast: the same layers and tokens as without, and nearly the same maps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from detection_data import small_detector
from named_weights import fill, waves
from torch import nn

import visattn as va
from visattn.attribution import METHODS
from visattn.models import AttentionResNet, VisionTransformer
from visattn.recording.subject import analyze_model

CLASSES = ("ant", "bee", "cat")
PHOTO = waves(1, 3, 61, 83)[0].permute(1, 2, 0).numpy()
FEW: dict[str, dict[str, Any]] = {
    "rise": {"num_masks": 11}, "smoothgrad": {"num_samples": 2},
    "integrated_gradients": {"n_steps": 2}, "occlusion": {"sliding_window_size": 20, "stride": 20},
}  # fmt: skip


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


DOG = va.QueryTarget(3, label="dog")
MODELS: dict[str, tuple[Callable[[], nn.Module], Any, torch.dtype]] = {
    "cnn": (cnn, "bee", torch.float16),
    "vit": (vit, "bee", torch.bfloat16),
    "detr": (small_detector, DOG, torch.float16),
}


def subject(model: nn.Module, method: str, target: Any) -> Any:
    """Return the map of a method; or the refusal."""
    chosen = target if METHODS[method].needs_target else None
    torch.manual_seed(0)
    try:
        [heatmap] = va.explain(model, PHOTO, method, chosen, **FEW.get(method, {}))
    except ValueError as refusal:
        return str(refusal)
    return heatmap


@pytest.mark.parametrize("name", MODELS)
def test_autocast_changes_the_rounding_alone(name: str) -> None:
    create, target, dtype = MODELS[name]
    # A model of its own, since what is known of one is kept: here it is found under autocast.
    model, other = create(), create()
    for method in METHODS:
        plain = subject(other, method, target)
        with torch.autocast("cpu", dtype):
            rounded = subject(model, method, target)
        if isinstance(plain, str):
            assert rounded == plain
            continue
        assert rounded.values.dtype == torch.float32
        assert rounded.values.shape == plain.values.shape
        assert rounded.info.more.get("rows") == plain.info.more.get("rows")
        for key in ("layer", "target", "class_name", "empty"):
            assert getattr(rounded.info, key) == getattr(plain.info, key), (method, key)
        both = torch.stack([plain.values.flatten(), rounded.values.flatten()]).double()
        # Occlusion shows differences of scores, in which little but the rounding may be left.
        if method != "occlusion" and (both.std(1) > 0).all():
            assert torch.corrcoef(both)[0, 1] > 0.9, (method, dtype)


def test_a_model_with_a_fast_path_is_analyzed_without_autocast() -> None:
    expected = analyze_model(torchvision_vit()).info
    with torch.autocast("cpu", torch.bfloat16):
        assert analyze_model(torchvision_vit()).info == expected
