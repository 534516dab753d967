"""Maps of all methods and libraries are placed on a mark in the image."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from image_text_models import hugging_face_vit
from torch import Tensor, nn
from torchvision.transforms import v2

import visattn as va
from visattn.attribution.methods import METHODS
from visattn.models.resnet import AttentionResNet
from visattn.models.vit import VisionTransformer

CLASSES = ("cat", "dog", "cow", "ant", "bee")
THIN: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2}
BLACK: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
SIZE, LARGE = (80, 120), (160, 240)
PHOTO = (123, 211)
MARKS = ((37, 59), (83, 137))  # centers, y and x on the photo
HALF = 11
SLOW = (  # the networks run for each of up to 512 channels
    ("torchvision CNN", "scorecam"),
    ("torchvision CNN", "ablationcam"),
    ("timm CNN", "scorecam"),
)
EXACT = {"gradcam++", "layercam", "eigencam", "scorecam", "eigengradcam", "kpcacam"}


def timm_model(name: str, size: tuple[int, int] = SIZE, **options: Any) -> nn.Module:
    overlay = {"input_size": (3, *size), **BLACK}
    return timm.create_model(name, num_classes=5, pretrained_cfg_overlay=overlay, **options)


def make_models() -> dict[str, nn.Module]:
    """Return models with zero position embeddings, which treat equal patches alike."""
    torch.manual_seed(11)
    block = torchvision.models.resnet.BasicBlock
    models: dict[str, nn.Module] = {
        "timm CNN": timm_model("test_resnet", LARGE),
        "registers": timm_model("vit_base_patch16_siglip_gap_224", img_size=SIZE, patch_size=8,
            reg_tokens=3, **THIN),
        "windows": timm_model("swin_tiny_patch4_window7_224", img_size=SIZE, patch_size=4,
            window_size=5, depths=(2, 2), num_heads=(2, 3), embed_dim=12),
        "torchvision CNN": torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=5),
        "Hugging Face": hugging_face_vit(image_size=SIZE, num_labels=5),
        "visattn ViT": VisionTransformer(
            CLASSES, img_size=SIZE, patch_size=8, **THIN, **BLACK),
    }  # fmt: skip
    torch.manual_seed(3)  # Grad-CAM weighs the channels of this network with both signs
    models["visattn CNN"] = AttentionResNet(
        CLASSES, depth=8, stem_width=8, img_size=SIZE, block="cbam", **BLACK
    )
    with torch.no_grad():
        for model in models.values():
            for name, values in model.named_parameters():
                if "pos" in name:
                    values.zero_()
    return models


def photo(mark: tuple[int, int] | None) -> np.ndarray:
    """Return a black image with a bright square at the mark."""
    image = np.zeros((*PHOTO, 3), np.uint8)
    if mark is not None:
        y, x = mark
        image[y - HALF : y + HALF + 1, x - HALF : x + HALF + 1] = (250, 120, 190)
    return image


def input_size(model: nn.Module) -> tuple[int, int]:
    return LARGE if isinstance(model, torchvision.models.ResNet) else SIZE


def compute_maps(model: nn.Module, method: str, target: Any) -> list[va.AttentionMap]:
    """Return placed maps of a black photo and of photos with each mark."""
    options: dict[str, Any] = {}
    if not hasattr(model, "pretrained_cfg") and not hasattr(model, "mean"):
        height, width = input_size(model)
        crop = [
            v2.Resize(max(height, -(-width * PHOTO[0] // PHOTO[1]))),
            v2.CenterCrop(input_size(model)),
        ]
        steps = [v2.ToImage(), *crop, v2.ToDtype(torch.float32, scale=True)]
        options["transform"] = v2.Compose(steps)
    photos = [photo(mark) for mark in (None, *MARKS)]
    return va.explain(model, photos, method, target, **options)


def centroid(values: Tensor) -> tuple[float, float]:
    """Return the centroid of the deviations from the median, y and x."""
    finite = values.isfinite()
    change = (values - values[finite].median()).abs().where(finite, 0).double()
    change = (change - 0.1 * change.max()).clamp(min=0)
    y, x = (torch.arange(side).double() + 0.5 for side in values.shape)
    total = change.sum()
    return float(change.sum(1) @ y / total), float(change.sum(0) @ x / total)


def offsets(model: nn.Module, method: str) -> list[float]:
    """Return the distance of the map from each mark in cells, the larger of both axes."""
    black, *others = compute_maps(model, method, 0 if METHODS[method].explains(None) else None)
    for target in range(1, 5):
        if not any(marked.info.empty for marked in others):
            break
        black, *others = compute_maps(model, method, target)
    distances: list[float] = []
    for marked, mark in zip(others, MARKS, strict=True):
        assert marked.geometry is not None
        y, x = centroid(marked.resize_to_image() - black.resize_to_image())
        left, top, right, bottom = marked.geometry.region
        rows, columns = marked.values.shape
        error_y, error_x = (
            (y - mark[0]) * rows / (bottom - top),
            (x - mark[1]) * columns / (right - left),
        )
        distances.append(max(abs(error_y), abs(error_x)))
    return distances


def limit(name: str, method: str) -> float:
    exact = method in EXACT and "CNN" in name
    # Random weights look where receptive fields are centered, up to half a cell beside the cell of
    # a trained network; test_cell_strides follows symmetric kernels. The 7 x 7 convolution of CBAM
    # gates the surroundings of a mark, too.
    return 0.5 + (0.3 if name == "visattn CNN" else 0.2) if exact else 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), SLOW)
def test_maps_of_slow_methods_are_placed_on_the_mark(name: str, method: str) -> None:
    assert max(offsets(make_models()[name], method)) < limit(name, method)


def test_layer_maps_are_placed_on_the_mark() -> None:
    for name, model in make_models().items():
        supported = va.methods_for(model, input_size=input_size(model))
        layered = [each for each in supported if METHODS[each].on_grid]
        assert set(layered) >= {"gradcam", "gradcam++", "layercam", "hirescam", "eigencam"}
        assert set(layered) >= {"scorecam", "ablationcam"}
        if "CNN" not in name:
            assert {"attention", "gradient_attention"} <= set(layered)
        if "CNN" not in name and name != "windows":
            assert {"rollout", "gradient_rollout", "relevance"} <= set(layered)
        for method in layered:
            # Normalized tokens have a mean of 0 over the channels, and the scores of this untrained
            # model hardly differ: the weighted sum is negative everywhere, and the map is empty.
            # A gate behind 7 x 7 convolutions with random weights is uneven within its wide field
            # around the mark; test_gates follows a spot.
            skipped = (("visattn ViT", "scorecam"), ("visattn CNN", "gates"), *SLOW)
            if (name, method) not in skipped:
                assert max(offsets(model, method)) < limit(name, method), (name, method)
