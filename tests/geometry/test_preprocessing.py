"""Geometry of torchvision and timm transforms, measured on images of coordinates."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import transforms as timm_steps
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision.transforms import _presets as presets, v2

from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import geometry_of_transform, transform_with_geometry

WITHOUT_COLORS: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}
SURE: dict[str, Any] = {
    "crop": v1.Compose([v1.Resize(256), v1.CenterCrop(224)]),
    "crop bicubic": v2.Compose([v2.Resize(248, interpolation=3), v2.CenterCrop(224)]),
    "timm": create_transform(
        (1, 224, 224), crop_pct=0.9, interpolation="bicubic", **WITHOUT_COLORS
    ),
    "timm oblong": create_transform((1, 192, 160), interpolation="bilinear", **WITHOUT_COLORS),
    "timm squash": create_transform((1, 224, 224), crop_mode="squash", **WITHOUT_COLORS),
    "squash": nn.Sequential(v2.Resize((193, 227)), nn.Identity()),
    "letterbox": [
        timm_steps.ResizeKeepRatio((224, 192), longest=1.0),
        timm_steps.CenterCropOrPad([224, 192]),
    ],
    "between": timm_steps.ResizeKeepRatio(131, longest=0.3),
    "pad": v1.Compose([v1.Pad((7, 61, 13, 17)), v1.Compose([v1.Resize([97, 113])])]),
    "pad two": v2.Compose([v2.Pad([31, 5]), v2.Resize([151]), v2.Pad(3)]),
    "longer": v2.Resize(None, max_size=211),
    "bounded": v1.Resize(199, max_size=257),
    "too small": v1.Compose([v1.Resize(101), v1.CenterCrop((140, 122))]),
    "too small, odd": v2.Compose([v2.Resize((83, 94)), v2.CenterCrop(109), v2.CenterCrop([64])]),
    "mirrored": v1.Compose([v1.Resize(113), v1.RandomHorizontalFlip(1.0), v1.CenterCrop(97)]),
    "not mirrored": v2.Compose([v2.RandomHorizontalFlip(0.0), v2.Resize(71)]),
    "preset": presets.ImageClassification(crop_size=224, resize_size=232, **WITHOUT_COLORS),
    "segmentation": presets.SemanticSegmentation(resize_size=131, **WITHOUT_COLORS),
    "colors": v2.Compose([v2.GaussianBlur(1), v2.Resize(59), v2.ToDtype(torch.float32)]),
}


def ramps(size: tuple[int, int]) -> Tensor:
    """Return an image whose colors are the x and y coordinates of its pixel centers."""
    y, x = (torch.arange(side) + 0.5 for side in size)
    return torch.stack(torch.broadcast_tensors(x, y[:, None]))


def places(geometry: Geometry) -> Tensor:
    """Return image coordinates x and y for the center of each input pixel."""
    height, width = geometry.input_size
    centers = ramps((height, width)).flatten(1).T.double()
    return geometry.to_image(centers).T.unflatten(1, (height, width))


def check(output: Tensor, geometry: Geometry, *, soft: bool = False) -> None:
    """Compare the measured coordinates with those of the geometry.

    Bars are soft if they were resized with the image.
    """
    assert geometry.input_size == tuple(output.shape[-2:])
    expected = places(geometry)
    left, top, right, bottom = geometry.region
    x, y = expected
    inside = (left < x) & (x < right) & (top < y) & (y < bottom)
    bars = (output == 0).any(0)  # padding is black, and no coordinate is 0
    assert soft or (bars != inside).all()
    (a, b, _), (c, d, _), _ = geometry.matrix
    edge_x, edge_y = 3 * max(abs(a + b), 1), 3 * max(abs(c + d), 1)  # filters are truncated there
    far = (left + edge_x < x) & (x < right - edge_x) & (top + edge_y < y) & (y < bottom - edge_y)
    assert far.any()
    assert not bars[far].any()
    assert (output - expected)[:, far].abs().max() < 0.1


def whole(transform: Any) -> Callable[[Any], Any]:
    """Return a transform that its library runs; a list is composed."""
    return v1.Compose(transform) if isinstance(transform, list) else transform


@pytest.mark.parametrize("name", SURE)
@pytest.mark.parametrize("size", [(480, 640), (640, 480), (1080, 1920), (517, 333)])
def test_geometry_of_transforms_of_pil_images(size: tuple[int, int], name: str) -> None:
    outputs = []
    for ramp in ramps(size).numpy():
        after = whole(SURE[name])(Image.fromarray(ramp))
        outputs.append(after[0] if isinstance(after, Tensor) else torch.tensor(np.array(after)))
    geometry = geometry_of_transform(SURE[name], size)
    assert geometry.image_size == size
    check(torch.stack(outputs), geometry, soft=name.startswith("pad"))


def test_geometry_of_deterministic_transforms() -> None:
    image = ramps((300, 421))
    for name in ("crop", "letterbox", "pad two", "mirrored", "colors"):
        output, geometry = transform_with_geometry(SURE[name], image)
        assert geometry == geometry_of_transform(SURE[name], (300, 421))
        assert torch.equal(output, whole(SURE[name])(image))


class Resize(nn.Module):
    """Has the name of a known transform, but different behavior."""


def slanted(image: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (v1.Lambda(slanted), "transform Lambda is unsupported; use the evaluation transform, or"),
        (v1.Compose([v1.Resize(8), slanted]), "transform slanted is unsupported"),
        (Resize(), "transform Resize is unsupported"),
        (v1.FiveCrop(5), "transform FiveCrop is unsupported"),
        (None, "transform NoneType is unsupported"),
        (v2.RandomApply([v2.RandomCrop(3)]), "transform RandomApply is random"),
        (v1.RandomCrop(3), "transform RandomCrop is random"),
        (v2.RandomHorizontalFlip(), "transform RandomHorizontalFlip is random"),
        (timm_steps.ResizeKeepRatio((131, 97), random_scale_prob=0.5), "ResizeKeepRatio is random"),
    ],
)
def test_unknown_and_random_transforms_are_refused(transform: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        geometry_of_transform(transform, (5, 7))


def test_transform_with_unexpected_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1.CenterCrop, "forward", lambda _, image: image[..., 1:])
    with pytest.raises(ValueError, match=r"CenterCrop must return \(3, 3\) .* got \(5, 6\)"):
        transform_with_geometry(v1.CenterCrop(3), torch.zeros(3, 5, 7))
