"""uint8 images are normalized inside; floats are taken as normalized, by every model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from random_numbers import pixels
from torch import Tensor

from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageClassifier, ImageEncoder, SmallEncoder
from visattn.models.glimpses.dram import DRAM
from visattn.models.resnet import AttentionResNet
from visattn.models.vit import VisionTransformer

CLASSES = ("cat", "dog", "hen")
COLORS: dict[str, Any] = {"mean": (0.3, 0.5, 0.7), "std": (0.2, 0.25, 0.3)}
MODELS: dict[str, Callable[[], ImageClassifier | ImageEncoder]] = {
    "small encoder": lambda: SmallEncoder((24, 40), channels=8, **COLORS),
    "timm encoder": lambda: TimmEncoder("test_resnet", img_size=(64, 96), **COLORS),
    "timm encoder in two parts": lambda: TimmEncoder(
        "test_resnet", img_size=(64, 96), unfreeze_from_stage=2, **COLORS
    ),
    "timm classifier": lambda: TimmClassifier(CLASSES, "test_resnet", img_size=(64, 96), **COLORS),
    "attention resnet": lambda: AttentionResNet(CLASSES, depth=8, stem_width=4, **COLORS),
    "vit": lambda: VisionTransformer(
        CLASSES, img_size=(24, 40), **COLORS, patch_size=8, embed_dim=12, depth=1, num_heads=3
    ),
    "glimpses": lambda: DRAM(
        CLASSES, (24, 40), COLORS["mean"], COLORS["std"], max_objects=1, hidden_size=8
    ),
    "gray glimpses": lambda: DRAM(CLASSES, (24, 40), [0.3], [0.2], max_objects=1, hidden_size=8),
}


def by_hand(images: Tensor, model: ImageClassifier | ImageEncoder) -> Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (model.mean, model.std))
    return (images - mean * 255) / (std * 255)


@pytest.mark.parametrize("name", MODELS)
def test_normalized_floats_equal_uint8_and_take_gradients(name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name]().eval()
    uint8_images = pixels(2, len(model.mean), *model.img_size)
    floats = by_hand(uint8_images, model).requires_grad_()
    output = model(floats)
    torch.testing.assert_close(output, model(uint8_images))
    (gradient,) = torch.autograd.grad(output.square().sum(), floats)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert model(uint8_images).isfinite().all()
        assert model(floats).isfinite().all()
    half = model.bfloat16()
    assert half(uint8_images).dtype == half(floats.detach().bfloat16()).dtype == torch.bfloat16


def test_gray_models_convert_rgb_to_gray_as_pillow_does() -> None:
    model = MODELS["gray glimpses"]()
    images = pixels(2, 3, *model.img_size)
    gray = model.normalize(images)
    torch.testing.assert_close(model.normalize(by_hand(images, model)), gray, rtol=1e-4, atol=1e-5)
    levels = (gray * 0.2 + 0.3) * 255
    for level, image in zip(levels[:, 0], images, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        assert (level.flatten() - torch.tensor(list(expected.tobytes()))).abs().max() <= 0.51
