"""Images on their way into models: where everything lies, and what the model sees."""

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
from torchvision.transforms import v2

from visattn.data.images.reader import ImageError, read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.pipelines.inputs import prepared
from visattn.recording.attention_map import AttentionMap
from visattn.recording.model_info import ExplainedModel, ModelInfo, Source

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


def subject(**changes: Any) -> ExplainedModel:
    card = ModelInfo("probe", "other", (224, 224), (0.0,) * 3, (1.0,) * 3, "none")
    known = {
        "model": nn.Identity(),
        "card": card,
        "forward": lambda images: images.mean((2, 3)),
    }
    return ExplainedModel(**{**known, **changes})


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
def test_a_mark_comes_back_to_its_place(size: tuple[int, int]) -> None:
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
        assert (read.size, read.orientation) == (size, code)
        for transform in transforms:
            made = prepared(subject(), read, transform=transform)
            placed = AttentionMap(probe(made.inputs), "probe", "gate", made.geometries[0])
            found = centroid(placed.on_image((size[0] // 4, size[1] // 4)), size)
            assert math.dist(found, (x, y)) < 0.5


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_a_mark_comes_back_from_each_frame(fit: Any) -> None:
    upright, place = marked((333, 517))
    made = prepared(subject(), upright, fit=fit)
    placed = AttentionMap(probe(made.inputs), "probe", "gate", made.geometries[0])
    assert math.dist(centroid(placed.on_image(), (333, 517)), place) < 0.5


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_ours_gets_what_it_normalizes_itself() -> None:
    model = AttentionResNet(("cat", "dog"), size=(32, 48))
    card = ModelInfo("ours", "visattn", (32, 48), model.mean, model.std, "none")
    images = [noise(61, 53), noise(40, 97, 1)]
    made = prepared(subject(model=model, card=card, forward=model.classify), images)
    framed = [frame(read_image(image), ResizeSpec((32, 48))) for image in images]
    assert torch.equal(made.inputs, model.normalized(torch.stack([one for one, _ in framed])))
    assert made.geometries == tuple(geometry for _, geometry in framed)
    assert [one.size for one in made.read] == [(61, 53), (40, 97)]


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_timms_gets_timms_own(crop_mode: str) -> None:
    model: Any = timm.create_model("test_resnet")
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_mode": crop_mode, "crop_pct": 0.9}
    config = resolve_model_data_config(model)
    card = ModelInfo("t", "timm", config["input_size"][1:], config["mean"], config["std"], "none")
    made = prepared(subject(model=model, card=card), noise(201, 177))
    theirs: Any = create_transform(**config)
    assert torch.equal(made.inputs[0], theirs(Image.fromarray(noise(201, 177))))
    assert made.geometries[0].input_size == config["input_size"][1:]


def test_torchvisions_and_others_are_framed() -> None:
    colors = ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    sources: list[tuple[Source, int]] = [("torchvision", 64), ("other", 56)]
    for source, shorter in sources:
        card = ModelInfo("net", source, (56, 56), *colors, "none")
        made = prepared(subject(card=card), noise(71, 83))
        steps = [v1.Resize(shorter), v1.CenterCrop(56), v1.ToTensor(), v1.Normalize(*colors)]
        torch.testing.assert_close(
            made.inputs[0], v1.Compose(steps)(Image.fromarray(noise(71, 83))), atol=1e-5, rtol=0
        )
        assert made.geometries[0].seen() == pytest.approx(
            prepared(subject(), noise(71, 83), transform=steps).geometries[0].seen()
        )


def test_a_gray_model_sees_gray() -> None:
    card = ModelInfo("gray", "other", (17, 17), (0.5,), (0.25,), "none")
    made = prepared(subject(card=card), noise(17, 17))
    gray = np.array(Image.fromarray(noise(17, 17)).convert("L"))
    torch.testing.assert_close(made.inputs, (torch.tensor(gray)[None, None] / 255 - 0.5) / 0.25)


def test_margins_are_what_a_model_takes_for_nothing() -> None:
    card = ModelInfo("net", "other", (20, 40), (0.4, 0.5, 0.6), (0.2,) * 3, "none")
    made = prepared(subject(card=card), noise(20, 20), fit="pad")
    assert made.inputs[..., :10].abs().max() < 0.01
    assert made.geometries[0].seen() == (0, 0, 20, 20)


def test_inputs_are_numbers_as_the_model_has_them() -> None:
    made = prepared(subject(model=nn.Linear(2, 2).double()), noise(8, 8))
    assert made.inputs.dtype == torch.float64


@pytest.mark.parametrize(
    ("images", "options", "reason"),
    [
        ([], {}, "at least one image, got none"),
        (noise(9, 9), {"transform": v1.ToTensor(), "fit": "pad"}, "got fit='pad' too: drop one"),
        (noise(9, 9), {"transform": v1.PILToTensor()}, r"got torch.uint8 Tensor; add ToTensor"),
        (noise(9, 9), {"transform": v1.Resize(5)}, r"tensors of floats \[c, y, x\], got Image"),
        (noise(9, 9), {"transform": v2.RandomAffine([-5, 5])}, "nobody knows where RandomAffine"),
        (
            [noise(9, 9), noise(9, 11)],
            {"transform": v1.ToTensor()},
            r"one size for all, got \(3, 9, 9\) and \(3, 9, 11\) of image",
        ),
        ("nowhere.jpg", {}, "nowhere.jpg: no such file"),
    ],
)
def test_mistakes_end_with_a_sentence(images: Any, options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        prepared(subject(), images, **options)


def test_a_image_that_cannot_be_read_says_so() -> None:
    with pytest.raises(ImageError, match="not an image"):
        prepared(subject(), [noise(9, 9), b"no image"])


def test_channels_of_other_kinds_are_refused() -> None:
    card = ModelInfo("satellite", "other", (8, 8), (0.5,) * 4, (0.5,) * 4, "none")
    with pytest.raises(ValueError, match="satellite takes images of 4 channels"):
        prepared(subject(card=card), noise(9, 9))
