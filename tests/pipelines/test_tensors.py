"""Tensors that are prepared already, and images of any number of channels."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

import visattn as va
from visattn.attribution.analysis import analyze_model
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import class_target
from visattn.pipelines import inputs

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
    maps = va.explain(model, x, "gradcam", labels, layer="features")
    subject = analyze_model(model, SIZE)
    target = class_target([1, 0, 1], subject.info.output)
    expected = METHODS["gradcam"].function(subject, batch(), target, layer="features")
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
    explainer = va.Explainer(model, img_size=SIZE, mean=mean, std=std)
    for method in ("input_x_gradient", "occlusion", "rise", "gradcam"):
        options = {
            "gradcam": {"layer": "features"},
            "rise": {"num_masks": 200, "score_type": "logits"},
        }.get(method, {})
        [heatmap] = explainer.explain(array, method, 1, **options)
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
    known = va.Explainer(model, img_size=32, resize_mode="squash", **colors)
    [heatmap] = known.explain(photo, "input_gradient", 1)
    assert "assumed" not in capsys.readouterr().err
    made = heatmap.info.more["preprocessing"]
    assert made == {
        "size": [32, 32], "size_source": "argument", "resize": "squash",
        "interpolation": "bilinear", "mean": [0.1, 0.2, 0.3], "std": [0.5] * 3,
        "source": "mean= and std=",
    }  # fmt: skip
