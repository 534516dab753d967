"""Preprocessing of images for models, and its geometry."""

import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import ExifTags, Image
from timm.data import transforms as timm_steps
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn
from torchvision import transforms as v1

from visattn.images.reader import read_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.models.resnet import AttentionResNet
from visattn.pipelines.inputs import PreparedImages, Preprocessing, prepare_photos
from visattn.recording.model_info import Library, ModelInfo
from visattn.results.attention_map import AttentionMap

PATCH = 8
STORED = {  # EXIF code -> how an upright image comes to lie in the file
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
ENDS = [v1.ToTensor()]
PIPELINES: dict[str, list[Any]] = {
    "resize and crop": [v1.Resize(256), v1.CenterCrop(224)],
    "squash": [v1.Resize((224, 224))],
    "letterbox": [
        timm_steps.ResizeKeepRatio((224, 224), longest=1.0),
        timm_steps.CenterCropOrPad(224),
    ],
    "pad": [v1.Pad((31, 7, 11, 43)), v1.Resize((224, 224))],
}


def prepare(images: Any, info: ModelInfo | None = None, **passed: Any) -> PreparedImages:
    """Prepare an image, or a list of them, for a model of so much metadata."""
    model = passed.pop("model", nn.Identity())
    known = ModelInfo("probe", "other", (224, 224), (0.0,) * 3, (1.0,) * 3, "none")
    info = None if "transform" in passed else info or known
    images = images if isinstance(images, list) else [images]
    return prepare_photos(model, info, images, Preprocessing(**passed))


def probe(inputs: Tensor) -> Tensor:
    """Return the mean of each patch: a model that looks at what is bright."""
    return inputs[0, 0].unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).mean((-2, -1))


def centroid(values: Tensor, size: tuple[int, int]) -> tuple[float, float]:
    """Return the center of what is bright, in pixels of an image of this size."""
    weights = values.nan_to_num(0.0).double()
    y, x = (
        (torch.arange(count) + 0.5).double() * side / count
        for count, side in zip(values.shape, size, strict=True)
    )
    whole = weights.sum()
    return float((weights.sum(0) @ x) / whole), float((weights.sum(1) @ y) / whole)


def marked(size: tuple[int, int]) -> tuple[Image.Image, tuple[float, float]]:
    """Return an image with a soft spot, and where that is; it is as wide as a few patches."""
    height, width = size
    x, y = 0.46 * width, 0.53 * height
    spread = 1.25 * PATCH * max(size) / 224 * (0.6 if max(size) > 1000 else 0.8)
    down = np.exp(-((np.arange(height) + 0.5 - y) ** 2) / (2 * spread**2))
    along = np.exp(-((np.arange(width) + 0.5 - x) ** 2) / (2 * spread**2))
    spot = np.round(255 * np.outer(down, along)).astype(np.uint8)
    return Image.fromarray(spot).convert("RGB"), (x, y)


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (1080, 1920), (517, 333)])
def test_geometry_maps_positions_back_to_the_original(size: tuple[int, int]) -> None:
    """Through files of all orientations, four pipelines, mirrored and not."""
    upright, (x, y) = marked(size)
    transforms = [
        [*steps, *flip, *ENDS]
        for steps in PIPELINES.values()
        for flip in ([], [v1.RandomHorizontalFlip(1.0)])
    ]
    for code in range(1, 9):
        stored = upright.copy() if code == 1 else upright.transpose(STORED[code])
        stored.getexif()[ExifTags.Base.Orientation] = code
        read = read_image(stored)
        assert read.size == size
        for transform in transforms:
            batch = prepare(read, transform=transform)
            placed = AttentionMap(probe(batch.inputs), "probe", "gate", batch.geometries[0])
            position = centroid(placed.resize_to_image((size[0] // 4, size[1] // 4)), size)
            assert math.dist(position, (x, y)) < 0.5


@pytest.mark.parametrize("resize_mode", ["crop", "squash", "pad"])
def test_geometry_of_resize_modes(resize_mode: Any) -> None:
    upright, place = marked((333, 517))
    batch = prepare(upright, resize_mode=resize_mode)
    placed = AttentionMap(probe(batch.inputs), "probe", "gate", batch.geometries[0])
    assert math.dist(centroid(placed.resize_to_image(), (333, 517)), place) < 0.5


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_visattn_models_normalize_themselves() -> None:
    model = AttentionResNet(("cat", "dog"), img_size=(32, 48))
    info = ModelInfo("ours", "visattn", (32, 48), model.mean, model.std, "none")
    images = [noise(61, 53), noise(40, 97, 1)]
    batch = prepare(images, info, model=model)
    resized = [resize_to_input(read_image(image), ResizeSpec((32, 48))) for image in images]
    assert torch.equal(
        batch.inputs, model.normalize(torch.stack([pixels for pixels, _ in resized]))
    )
    assert batch.geometries == tuple(geometry for _, geometry in resized)
    assert [image.size for image in batch.originals] == [(61, 53), (40, 97)]


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_timm_models_use_the_timm_transform(crop_mode: str) -> None:
    model: Any = timm.create_model("test_resnet")
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_mode": crop_mode, "crop_pct": 0.9}
    config = resolve_model_data_config(model)
    info = ModelInfo("t", "timm", config["input_size"][1:], config["mean"], config["std"], "none")
    batch = prepare(noise(201, 177), info, model=model)
    theirs: Any = create_transform(**config)
    assert torch.equal(batch.inputs[0], theirs(Image.fromarray(noise(201, 177))))
    assert batch.geometries[0].input_size == config["input_size"][1:]


def test_torchvision_and_other_models_are_center_cropped() -> None:
    colors = ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    sources: list[tuple[Library, int]] = [("torchvision", 64), ("other", 56)]
    for source, shorter in sources:
        info = ModelInfo("net", source, (56, 56), *colors, "none")
        batch = prepare(noise(71, 83), info)
        steps = [v1.Resize(shorter), v1.CenterCrop(56), v1.ToTensor(), v1.Normalize(*colors)]
        torch.testing.assert_close(
            batch.inputs[0], v1.Compose(steps)(Image.fromarray(noise(71, 83))), atol=1e-5, rtol=0
        )
        assert batch.geometries[0].region == pytest.approx(
            prepare(noise(71, 83), transform=steps).geometries[0].region
        )


def test_gray_models_get_gray_images() -> None:
    info = ModelInfo("gray", "other", (17, 17), (0.5,), (0.25,), "none")
    batch = prepare(noise(17, 17), info)
    gray = np.array(Image.fromarray(noise(17, 17)).convert("L"))
    torch.testing.assert_close(batch.inputs, (torch.tensor(gray)[None, None] / 255 - 0.5) / 0.25)


def test_padding_has_the_mean_color() -> None:
    info = ModelInfo("net", "other", (20, 40), (0.4, 0.5, 0.6), (0.2,) * 3, "none")
    batch = prepare(noise(20, 20), info, resize_mode="pad")
    assert batch.inputs[..., :10].abs().max() < 0.01
    assert batch.geometries[0].region == (0, 0, 20, 20)


def test_inputs_have_the_dtype_of_the_model() -> None:
    batch = prepare(noise(8, 8), model=nn.Linear(2, 2).double())
    assert batch.inputs.dtype == torch.float64
