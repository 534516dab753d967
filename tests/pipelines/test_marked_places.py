"""Maps of every method and of models of all kinds lie on the only place that is unlike the rest."""

from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torchvision.transforms import v2

import visattn as va
from visattn.attribution.methods import METHODS
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer

CLASSES = ("cat", "dog", "cow", "ant", "bee")
THIN: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2}
BLACK: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
SIZE, LARGE = (80, 120), (160, 240)
PHOTO = (123, 211)
MARKS = ((37, 59), (83, 137))  # their middles, y and x on the photo
HALF = 11
QUICK: dict[str, dict[str, Any]] = {
    "smoothgrad": {"num_samples": 2},
    "integrated_gradients": {"n_steps": 3},
    "occlusion": {"sliding_window_size": 12},
}


def of_timm(name: str, size: tuple[int, int] = SIZE, **options: Any) -> nn.Module:
    overlay = {"input_size": (3, *size), **BLACK}
    return timm.create_model(name, num_classes=5, pretrained_cfg_overlay=overlay, **options)


def of_hugging_face() -> nn.Module:
    sizes: dict[str, Any] = {"image_size": SIZE, "patch_size": 8, "hidden_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_labels": 5}
    config = transformers.ViTConfig(**sizes)
    return transformers.ViTForImageClassification(config)


def models() -> dict[str, nn.Module]:
    """Return models without positions: all places that look alike are alike to them."""
    torch.manual_seed(11)
    block = torchvision.models.resnet.BasicBlock
    made: dict[str, nn.Module] = {
        "timm CNN": of_timm("test_resnet", LARGE),
        "class token": of_timm("vit_tiny_patch16_224", img_size=SIZE, patch_size=8, **THIN),
        "registers": of_timm("vit_base_patch16_siglip_gap_224", img_size=SIZE, patch_size=8,
            reg_tokens=3, **THIN),
        "windows": of_timm("swin_tiny_patch4_window7_224", img_size=SIZE, patch_size=4,
            window_size=5, depths=(2, 2), num_heads=(2, 3), embed_dim=12),
        "torchvision CNN": torchvision.models.ResNet(block, [1, 1, 1, 1], num_classes=5),
        "Hugging Face": of_hugging_face(),
        "ours": VisionTransformer(CLASSES, img_size=SIZE, patch_size=8, embed_dim=24, depth=2, num_heads=2,
            **BLACK),
        "our CNN": AttentionResNet(CLASSES, depth=8, stem_width=8, img_size=SIZE, block="cbam", **BLACK),
    }  # fmt: skip
    with torch.no_grad():
        for model in made.values():
            for name, values in model.named_parameters():
                if "pos" in name:
                    values.zero_()
    return made


def photo(mark: tuple[int, int] | None) -> np.ndarray:
    """Return black, with a bright square in one place."""
    image = np.zeros((*PHOTO, 3), np.uint8)
    if mark is not None:
        y, x = mark
        image[y - HALF : y + HALF + 1, x - HALF : x + HALF + 1] = (250, 120, 190)
    return image


def size_of(model: nn.Module) -> tuple[int, int]:
    return LARGE if isinstance(model, torchvision.models.ResNet) else SIZE


def explained(model: nn.Module, method: str, target: Any) -> list[va.AttentionMap]:
    """Return maps of a black photo and of one with each mark, as they lie on the photo."""
    options = dict(QUICK.get(method, {}))
    if not hasattr(model, "pretrained_cfg") and not hasattr(model, "mean"):
        height, width = size_of(model)
        crop = [
            v2.Resize(max(height, -(-width * PHOTO[0] // PHOTO[1]))),
            v2.CenterCrop(size_of(model)),
        ]
        steps = [v2.ToImage(), *crop, v2.ToDtype(torch.float32, scale=True)]
        options["transform"] = v2.Compose(steps)
    photos = [photo(mark) for mark in (None, *MARKS)]
    return va.explain(model, photos, method, target, keep_empty=True, **options)


def middle(values: Tensor) -> tuple[float, float]:
    """Return the middle of what is unlike the most usual value, y and x."""
    seen = values.isfinite()
    change = (values - values[seen].median()).abs().where(seen, 0).double()
    change = (change - 0.1 * change.max()).clamp(min=0)
    y, x = (torch.arange(side).double() + 0.5 for side in values.shape)
    whole = change.sum()
    return float(change.sum(1) @ y / whole), float(change.sum(0) @ x / whole)


def offsets(model: nn.Module, method: str) -> list[float]:
    """Return how far from each mark the map lies, in cells; the longer of both axes."""
    black, *others = explained(model, method, 0 if METHODS[method].needs_target else None)
    for target in range(1, 5):
        if not any(one.metadata["empty"] for one in others):
            break
        black, *others = explained(model, method, target)
    found: list[float] = []
    for one, mark in zip(others, MARKS, strict=True):
        assert one.geometry is not None
        y, x = middle(one.resize_to_image() - black.resize_to_image())
        left, top, right, bottom = one.geometry.seen()
        rows, columns = one.values.shape
        down, along = (
            (y - mark[0]) * rows / (bottom - top),
            (x - mark[1]) * columns / (right - left),
        )
        found.append(max(abs(down), abs(along)))
    return found


class Window(nn.Module):
    """A model that sees the pixels around a mark only, and nothing elsewhere."""

    def __init__(self, model: nn.Module, mark: tuple[int, int]) -> None:
        super().__init__()
        self.model, self.mark = model, mark

    def forward(self, x: Tensor) -> Tensor:
        scale = max(SIZE[0] / PHOTO[0], SIZE[1] / PHOTO[1])
        (top, low), (left, right) = (
            (round((at - HALF - whole / 2) * scale + side / 2),
                round((at + HALF + 1 - whole / 2) * scale + side / 2))
            for at, whole, side in zip(self.mark, PHOTO, SIZE, strict=True)
        )  # fmt: skip
        window = torch.zeros_like(x)
        window[..., top:low, left:right] = 1
        found = self.model(x * window)
        return getattr(found, "logits", found)


def test_maps_of_layers_lie_on_the_place_that_is_unlike_the_rest() -> None:
    for name, model in models().items():
        fitting = va.methods_for(model, img_size=size_of(model))
        layered = [one for one in fitting if METHODS[one].needs in ("tokens", "features")]
        assert set(layered) >= {"gradcam", "gradcam++", "layercam"}
        if "CNN" not in name:
            assert {"attention", "gradient_attention"} <= set(layered)
        if "CNN" not in name and name != "windows":
            assert {"rollout", "gradient_rollout", "relevance"} <= set(layered)
        for method in layered:
            assert max(offsets(model, method)) < 1.5, (name, method)


def test_maps_of_pixels_lie_where_the_model_looks() -> None:
    noise = np.random.default_rng(5).integers(0, 256, (*PHOTO, 3), np.uint8)
    crop = [v2.Resize(max(SIZE[0], -(-SIZE[1] * PHOTO[0] // PHOTO[1]))), v2.CenterCrop(SIZE)]
    steps = v2.Compose([v2.ToImage(), *crop, v2.ToDtype(torch.float32, scale=True)])
    cell = 8 * PHOTO[1] / SIZE[1]
    made = models()
    for name in ("timm CNN", "class token", "Hugging Face"):
        for mark in MARKS:
            window = Window(made[name], mark).eval()
            unseen = window(torch.zeros(1, 3, *SIZE)).detach()

            def target(scores: Tensor, unseen: Tensor = unseen) -> Tensor:
                return (scores - unseen).norm(dim=1)

            for method in ("input_gradient", *QUICK):
                [one] = va.explain(
                    window, noise, method, target, transform=steps, **QUICK.get(method, {})
                )
                y, x = middle(one.resize_to_image())
                off = max(abs(y - mark[0]), abs(x - mark[1])) / cell
                assert off < 1.5, (name, method, mark, off)
