"""A model says which images it takes, or the error says what to ask for."""

from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from visattn.attribution.explained_model import subject_of
from visattn.recording.input_size import checked_size, class_names, own_size


class Flat(nn.Module):
    """A network for images of 32 x 32, which says so nowhere."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def test_a_size_is_read_where_models_say_it() -> None:
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
    for said, size in cases:
        model = Flat()
        vars(model).update(said)
        assert own_size(model) == size
        whole = nn.Sequential(nn.Identity(), model)
        assert own_size(whole) == size
    model = Flat()
    vars(model)["image_size"] = 32
    assert subject_of(model).card.size == (32, 32)
    small = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=5)
    assert subject_of(small).card.size == (32, 32)


def test_the_error_says_the_call_and_the_size() -> None:
    said = r"224 x 224 pixels \(RuntimeError.*; it runs on 32 x 32: visattn.explain\(model, "
    with pytest.raises(ValueError, match=said + r"images, size=32\), or --input-size 32$"):
        subject_of(Flat())

    class Two(nn.Module):
        def forward(self, x: Tensor, text: Tensor) -> Tensor:
            return x + text

    with pytest.raises(ValueError, match="must take a batch of images alone; wrap it"):
        subject_of(Two())
    odd = nn.Sequential(nn.Flatten(), nn.Linear(3 * 17 * 19, 2))
    with pytest.raises(ValueError, match=r"say the size of its images: .*size=\(height, width\)"):
        subject_of(odd)
    assert subject_of(odd, (17, 19)).card.size == (17, 19)
    for wrong in (0, (3,), (3, 17, 19), "32"):
        with pytest.raises(ValueError, match=r"one number or \(height, width\)"):
            checked_size(wrong)


def test_names_of_classes_are_one_for_each() -> None:
    assert subject_of(Flat(), 32, ["cat", "dog", "cow"]).classes == ("cat", "dog", "cow")
    assert class_names({2: "cow", 0: "cat", 1: "dog"}, 3) == ("cat", "dog", "cow")
    with pytest.raises(ValueError, match="a name for each of 3 classes, got 2"):
        subject_of(Flat(), 32, ["cat", "dog"])
    with pytest.raises(ValueError, match="numbered from 0 to 1"):
        class_names({1: "cat", 2: "dog"}, 2)
    with pytest.raises(ValueError, match="must differ, got 'cat' more than once"):
        class_names(["cat", "cat"], None)
    with pytest.raises(TypeError, match="got the text 'cat'"):
        class_names("cat", None)
