"""Photos and tensors as inputs of models: preprocessing, its geometry, channels and colors."""

from typing import Any, cast

import numpy as np
import pytest
import timm
import torch
import transformers
from image_text_models import hugging_face_vit
from PIL import Image
from random_numbers import photo
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import visattn as va
from visattn import Explainer, explain
from visattn.attribution.dense_targets import PixelTarget
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import Score
from visattn.images.reader import read_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.models import (
    DETR,
    SPECIAL_TOKENS,
    CrossAttentionVQA,
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    UNet,
)
from visattn.models.base import NormalizedInput
from visattn.models.loaded import Loaded, mark
from visattn.models.resnet import AttentionResNet
from visattn.pipelines import glimpses, inputs
from visattn.pipelines.inputs import PreparedImages, Preprocessing, prepare_photos
from visattn.recording.model_info import Library, ModelInfo
from visattn.recording.subject import analyze_model


def prepare(images: Any, info: ModelInfo | None = None, **passed: Any) -> PreparedImages:
    """Prepare an image, or a list of them, for a model of so much metadata."""
    model = passed.pop("model", nn.Identity())
    known = ModelInfo("probe", "other", (224, 224), (0.0,) * 3, (1.0,) * 3, "none")
    info = None if "transform" in passed else info or known
    images = images if isinstance(images, list) else [images]
    return prepare_photos(model, info, images, Preprocessing(**passed))


def test_visattn_models_normalize_themselves() -> None:
    model = AttentionResNet(("cat", "dog"), img_size=(32, 48))
    info = ModelInfo("ours", "visattn", (32, 48), model.mean, model.std, "none")
    images = [photo(61, 53), photo(40, 97, 1)]
    batch = prepare(images, info, model=model)
    resized = [resize_to_input(read_image(image), ResizeSpec((32, 48))) for image in images]
    assert torch.equal(
        batch.inputs, model.normalize(torch.stack([pixels for pixels, _ in resized]))
    )
    assert batch.geometries == tuple(geometry for _, geometry in resized)
    assert [image.size for image in batch.originals] == [(61, 53), (40, 97)]
    mark(model, Loaded(resize_mode="squash"))  # as in the training of a model from a file
    assert prepare(images[0], info, model=model).geometries[0].region == (0, 0, 53, 61)


WORDS = (*SPECIAL_TOKENS, "what")
PIPELINES: dict[str, tuple[Any, Any, Any]] = {
    "ask": (
        lambda encoder: CrossAttentionVQA(WORDS, ("a", "b"), encoder, dim=8),
        lambda model, photo: getattr(va.ask(model, photo, "what")[0].maps, "geometry", None),
        "squash",
    ),
    "detect": (
        lambda encoder: DETR(("a",), encoder, dim=8, num_queries=3),
        lambda model, photo: va.detect(model, photo)[0].maps.geometry,
        "pad",
    ),
    "segment": (
        lambda encoder: UNet(("a", "b"), encoder),
        lambda model, photo: next(va.segment(model, photo)).geometry,
        "pad",
    ),
    "explain": (
        lambda encoder: UNet(("a", "b"), encoder),
        lambda model, photo: (
            va.explain(model, photo, "gradcam", PixelTarget(1, 26, 30))[0].geometry
        ),
        "pad",
    ),
    "glimpses": (
        lambda encoder: RecurrentAttentionModel(("a", "b"), (24, 40), [0.5], [0.5]),
        lambda model, photo: glimpses(model, photo)[0].geometry,
        "crop",
    ),
    "caption": (
        lambda encoder: ShowAttendTell(WORDS, encoder),
        lambda model, photo: va.caption(model, photo, min_length=1)[0].maps.geometry,
        "crop",
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_photos_are_resized_as_in_the_training_of_the_model(name: str) -> None:
    build, place, unknown = PIPELINES[name]
    model, image = build(SmallEncoder((24, 40), channels=8)), photo(61, 53)
    modes: tuple[Any, ...] = (None, "crop", "squash", "pad")
    for mode in modes:
        model = mark(model, Loaded(resize_mode=mode))
        expected = resize_to_input(read_image(image), ResizeSpec((24, 40), mode or unknown))[1]
        assert place(model, image) == expected


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_timm_models_use_the_timm_transform(crop_mode: str) -> None:
    model: Any = timm.create_model("test_resnet")
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_mode": crop_mode, "crop_pct": 0.9}
    config = resolve_model_data_config(model)
    info = ModelInfo("t", "timm", config["input_size"][1:], config["mean"], config["std"], "none")
    batch = prepare(photo(201, 177), info, model=model)
    theirs: Any = create_transform(**config)
    assert torch.equal(batch.inputs[0], theirs(Image.fromarray(photo(201, 177))))
    assert batch.geometries[0].input_size == config["input_size"][1:]


def test_torchvision_and_other_models_are_center_cropped() -> None:
    colors = ((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    sources: list[tuple[Library, int]] = [("torchvision", 64), ("other", 56)]
    for source, shorter in sources:
        info = ModelInfo("net", source, (56, 56), *colors, "none")
        batch = prepare(photo(71, 83), info)
        steps = [v1.Resize(shorter), v1.CenterCrop(56), v1.ToTensor(), v1.Normalize(*colors)]
        torch.testing.assert_close(
            batch.inputs[0], v1.Compose(steps)(Image.fromarray(photo(71, 83))), atol=1e-5, rtol=0
        )
        assert batch.geometries[0].region == pytest.approx(
            prepare(photo(71, 83), transform=steps).geometries[0].region
        )


def test_gray_models_get_gray_images() -> None:
    info = ModelInfo("gray", "other", (17, 17), (0.5,), (0.25,), "none")
    batch = prepare(photo(17, 17), info)
    gray = np.array(Image.fromarray(photo(17, 17)).convert("L"))
    torch.testing.assert_close(batch.inputs, (torch.tensor(gray)[None, None] / 255 - 0.5) / 0.25)


def test_padding_has_the_mean_color() -> None:
    info = ModelInfo("net", "other", (20, 40), (0.4, 0.5, 0.6), (0.2,) * 3, "none")
    texts = NormalizedInput()  # as a classifier of texts, whose normalization is the usual one
    texts.set_input((20, 40), info.mean, info.std)
    for model in (nn.Identity(), texts):
        batch = prepare(photo(20, 20), info, resize_mode="pad", model=model)
        assert batch.inputs[..., :10].abs().max() < 0.01
        assert batch.geometries[0].region == (0, 0, 20, 20)


def test_inputs_have_the_dtype_of_the_model() -> None:
    batch = prepare(photo(8, 8), model=nn.Linear(2, 2).double())
    assert batch.inputs.dtype == torch.float64


PHOTO = photo(53, 71)


def processor(**options: Any) -> Any:
    size = {"height": 48, "width": 48}
    colors = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    return transformers.ViTImageProcessor(size=size, **colors, **options)


def test_a_processor_prepares_the_images_that_are_explained() -> None:
    model, own = hugging_face_vit(image_size=48, patch_size=16), processor()
    pixels = own(PHOTO, return_tensors="pt")["pixel_values"]
    expected = float(model(pixels).logits[0, 1].detach())
    [default] = explain(model, PHOTO, "input_gradient", 1)
    assert abs(default.info.score - expected) > 1e-3  # of other colors
    for options in ({"processor": own}, {"transform": own}):
        [heatmap] = explain(model, PHOTO, "input_gradient", 1, **options)
        assert heatmap.info.score == pytest.approx(expected, abs=1e-4)
        described = heatmap.info.more["preprocessing"]
        assert described["mean"] == pytest.approx([0.1] * 3)
        assert (described["source"], described["size"]) == ("transform", [48, 48])
    torch.testing.assert_close(Explainer(model, transform=own).prepare(PHOTO).inputs, pixels)


def test_another_size_keeps_the_colors_of_a_loaded_model() -> None:
    model = timm.create_model("test_resnet", num_classes=3).eval()
    steps = v2.Compose([
        v2.PILToTensor(), v2.Resize((40, 40)), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.1] * 3, [0.2] * 3),
    ])  # fmt: skip
    loaded = mark(model, Loaded("random", ("a", "b", "c"), steps))
    photo = np.full((40, 40, 3), 255, np.uint8)
    sizes: tuple[dict[str, Any], ...] = ({}, {"input_size": 32}, {"resize_mode": "squash"})
    for options in sizes:
        inputs = Explainer(loaded, **options).prepare(photo).inputs
        torch.testing.assert_close(inputs, torch.full_like(inputs, (1 - 0.1) / 0.2))


def network(first: nn.Module, outputs: int, *last: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, outputs))
    return nn.Sequential(first, *layers, *last).eval()


def test_one_number_stands_for_two_classes() -> None:
    names = ("cat", "dog")
    for last in ((), (nn.Sigmoid(),)):
        model = network(nn.Conv2d(3, 5, 3), 1, *last)
        for bias, label in ((-1.0, "cat"), (1.0, "dog")):
            nn.init.constant_(cast("nn.Linear", model[4]).bias, bias)
            options: dict[str, Any] = {"input_size": 32}
            number = float(model(Explainer(model, **options).prepare(PHOTO).inputs).detach())
            [alone] = explain(model, PHOTO, "input_x_gradient", **options)
            assert alone.info.score == pytest.approx(number, abs=1e-5)
            assert alone.info.more["predicted"] is (label == "dog")
            options["class_names"] = names
            [best] = explain(model, PHOTO, "input_x_gradient", **options)
            assert (best.info.class_name, best.info.target) == (label, names.index(label))
            other = 1 - number if last else -number
            score = number if label == "dog" else other
            assert best.info.score == pytest.approx(score, abs=1e-5)
            cat, dog = (
                explain(model, PHOTO, "input_x_gradient", each, **options) for each in names
            )
            torch.testing.assert_close(cat[0].values, -dog[0].values)
            both = [
                explain(model, PHOTO, "rise", each, num_masks=8, **options)[0] for each in names
            ]
            shares = float(both[0].values.mean() + both[1].values.mean())
            ones = explain(
                model, PHOTO, "rise", lambda out: out[:, 0] * 0 + 1, num_masks=8, **options
            )
            assert shares == pytest.approx(float(ones[0].values.mean()), rel=1e-4)


SIZE = (40, 56)
BLOCK = (slice(24, 32), slice(8, 16))


class Reader(nn.Module):
    """A network whose class 1 reads the last channel alone, place by place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Conv2d(channels, 2, 4, 4)
        for parameter in self.features.parameters():
            nn.init.zeros_(parameter)
        nn.init.constant_(self.features.weight[1, -1], 0.1)
        self.act = nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.act(self.features(images)).mean((2, 3))


def batch(count: int = 3) -> torch.Tensor:
    """Images whose last channel has a block, in the first image."""
    images = torch.zeros(count, 3, *SIZE)
    images[0, -1, *BLOCK] = 1.0
    return images


@pytest.mark.parametrize(
    "form", ["batch", "leaf", "half", "channels_last", "list", "batches of one"]
)
def test_a_batch_is_explained_as_it_is(form: str) -> None:
    x: Any = {
        "leaf": batch().requires_grad_(),
        "half": batch().half(),
        "channels_last": batch().to(memory_format=torch.channels_last),
        "list": list(batch()),
        "batches of one": list(batch().split(1)),
    }.get(form, batch())
    model = Reader(3)
    labels = torch.tensor([1, 0, 1])
    maps = va.explain(model, x, "gradcam", labels, layers="features")
    subject = analyze_model(model, SIZE)
    target = Score((1, 0, 1), subject.info.output)
    expected = METHODS["gradcam"].function(subject, batch(), target, layers="features")
    torch.testing.assert_close(torch.stack([each.values for each in maps]), expected)
    assert [each.info.target for each in maps] == [1, 0, 1]
    placed = maps[0].resize_to_image()
    assert placed.shape == SIZE
    assert float(placed[BLOCK].mean()) > 10 * float(placed.mean())


def test_a_single_tensor_is_drawn_with_its_colors() -> None:
    image = batch()[0]
    [heatmap] = va.explain(Reader(3), image, "input_x_gradient", 1)
    drawn = np.asarray(va.overlay(image, heatmap))
    assert drawn.shape == (*SIZE, 3)
    assert va.figure(heatmap, image).axes
    made = heatmap.info.more["preprocessing"]
    assert (made["resize"], made["display"]) == ("tensor", "channels 0, 1, 2 as red, green, blue")


def test_maps_of_tensors_lie_on_the_photos_that_they_were_made_of() -> None:
    steps = v2.Compose([v2.Resize((48, 60)), v2.CenterCrop(SIZE), v2.ToImage(),
                        v2.ToDtype(torch.float32, scale=True)])  # fmt: skip
    photos = [np.random.default_rng(0).integers(0, 256, (96, 120, 3), np.uint8)] * 2
    tensors = torch.stack([steps(Image.fromarray(photo)) for photo in photos])
    made = va.explain(Reader(3), tensors, "occlusion", 1, originals=photos, transform=steps)
    direct = va.explain(Reader(3), photos, "occlusion", 1, transform=steps)
    assert [each.geometry for each in made] == [each.geometry for each in direct]
    torch.testing.assert_close(made[1].values, direct[1].values)


@pytest.mark.parametrize(
    ("dtype", "high", "channels"),
    [(np.uint8, 255, 7), (np.uint16, 65535, 2), (np.float32, 1.0, 4), (np.int16, 3000, 5)],
)
def test_pixels_of_a_channel_are_followed(dtype: Any, high: float, channels: int) -> None:
    array = np.zeros((*SIZE, channels), dtype)
    array[*BLOCK, -1] = high
    mean, std = (0, 3000) if dtype is np.int16 else (0, 1)
    model = Reader(channels)
    explainer = va.Explainer(model, input_size=SIZE, mean=mean, std=std)
    for method in ("input_x_gradient", "occlusion", "rise", "gradcam"):
        options = {
            "gradcam": {"layers": "features"},
            "rise": {"num_masks": 200},
        }.get(method, {})
        target = (lambda scores: scores[:, 1]) if method == "rise" else 1
        [heatmap] = explainer.explain(array, method, target, **options)
        placed = heatmap.resize_to_image()
        assert float(placed[BLOCK].mean()) > 1.1 * float(placed.mean()), method
    assert "itti_koch" not in explainer.methods()
    assert va.overlay(array, heatmap).size == SIZE[::-1]
    made = heatmap.info.more["preprocessing"]
    assert (made["mean"], made["source"]) == ([mean] * channels, "mean= and std=")


def test_what_is_assumed_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inputs, "_SAID", set())
    model = Reader(3)
    photo = np.zeros((*SIZE, 3), np.uint8)
    for _ in range(2):
        va.explain(model, photo, "input_gradient", 1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "assumed" in line]
    assert len(lines) == 1
    assert "for Reader: mean and std of ImageNet, 224 x 224 pixels, the shorter" in lines[0]
    colors: Any = {"mean": (0.1, 0.2, 0.3), "std": 0.5}
    known = va.Explainer(model, input_size=32, resize_mode="squash", **colors)
    known.explain(photo, "input_gradient", 1)
    assert "assumed" not in capsys.readouterr().err


def test_mean_and_std_of_colors_are_not_those_of_a_gray_tensor() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    explainer = va.Explainer(model, mean=(0.5, 0.4, 0.3), std=(0.5,) * 3)
    batch = explainer.prepare(torch.rand(1, 1, 16, 16))
    assert batch.originals[0].display.startswith("channel 0 in gray")
    assert len(explainer.analyze(batch).info.mean) == 1
