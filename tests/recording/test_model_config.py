"""Image size and class names come from the configuration of a model, or an error says how."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from visattn.recording.model_config import (
    configured_image_size,
    input_hint,
)
from visattn.recording.subject import analyze_model

X = torch.zeros(1, 3, 32, 32)


class Flat(nn.Module):
    """A network for images of 32 x 32 without any configuration."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def test_image_size_is_read_from_attributes_and_configs() -> None:
    cases: list[tuple[dict[str, Any], tuple[int, int] | None]] = [
        ({}, None),
        ({"image_size": 48}, (48, 48)),
        ({"img_size": (48, 80)}, (48, 80)),
        ({"input_size": (3, 48, 80)}, (48, 80)),
        ({"default_cfg": {"input_size": (3, 31, 37)}}, (31, 37)),
        ({"config": SimpleNamespace(image_size=64)}, (64, 64)),
        ({"config": {"image_size": [40, 56]}}, (40, 56)),
        ({"image_size": "large"}, None),
    ]
    for attributes, size in cases:
        model = Flat()
        vars(model).update(attributes)
        assert configured_image_size(model) == size
        nested = nn.Sequential(nn.Identity(), model)
        assert configured_image_size(nested) == size
    model = Flat()
    vars(model)["default_cfg"] = {"input_size": (3, 224, 224)}  # of its published weights
    vars(model.features[0])["img_size"] = (48, 80)
    assert configured_image_size(nn.Sequential(nn.LSTM(512, 8), model)) == (48, 80)
    model = Flat()
    vars(model)["image_size"] = 32
    assert analyze_model(model).info.input_size == (32, 32)
    small = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=5)
    assert analyze_model(small).info.input_size == (32, 32)


class OfProperty(Flat):
    """Computes its configuration."""

    @property
    def config(self) -> dict[str, Any]:
        return {"image_size": 48}


class OfInner(Flat):
    """Passes on what another object knows, as wrappers do."""

    def __getattr__(self, name: str) -> Any:
        return {"input_size": (3, 31, 37)} if name == "default_cfg" else super().__getattr__(name)


def test_image_size_is_read_from_configs_that_are_no_attributes() -> None:
    assert configured_image_size(OfProperty()) == (48, 48)
    assert configured_image_size(OfInner()) == (31, 37)


def test_the_error_suggests_sizes_that_work() -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    sides = " and ".join(f"{n} x {n}" for n in (28, 32, 64, 96, 128, 224, 256, 299, 384))
    assert f"it runs on 17 x 19 and {sides}: " in input_hint(pooled, (17, 19), 3)
    odd = nn.Sequential(nn.Flatten(), nn.Linear(3 * 17 * 19, 2))
    assert analyze_model(odd, (17, 19)).info.input_size == (17, 19)


def test_class_names_are_given_in_order_or_by_index() -> None:
    names = ("cat", "dog", "cow")
    for given in (list(names), {2: "cow", 0: "cat", 1: "dog"}):
        assert analyze_model(Flat(), 32, given).class_names == names
    with pytest.raises(TypeError, match="got the string 'cat'"):
        analyze_model(Flat(), 32, "cat")
