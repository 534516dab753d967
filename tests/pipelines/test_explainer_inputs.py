"""Arguments that prepare images or name classes are used in each branch, or refused."""

from typing import Any, cast

import numpy as np
import pytest
import timm
import torch
import transformers
from torch import nn
from torchvision.transforms import v2

from visattn import Explainer, explain
from visattn.models import RecurrentAttentionModel
from visattn.models.loaded import Loaded, mark

PHOTO = np.random.default_rng(0).integers(0, 256, (53, 71, 3), dtype=np.uint8)


def vit() -> Any:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "num_labels": 3,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = transformers.ViTConfig(image_size=48, patch_size=16, **options)
    return transformers.ViTForImageClassification(config).eval()


def processor(**options: Any) -> Any:
    size = {"height": 48, "width": 48}
    colors = {"image_mean": [0.1] * 3, "image_std": [0.2] * 3}
    return transformers.ViTImageProcessor(size=size, **colors, **options)


def test_a_processor_prepares_the_images_that_are_explained() -> None:
    model, own = vit(), processor()
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


def test_no_argument_is_ignored() -> None:
    colors = (0.5,) * 3, (0.3,) * 3
    glimpses = RecurrentAttentionModel(
        ("cat", "dog"), (24, 40), *colors, glimpse_size=7, hidden_size=11
    ).eval()
    steps = v2.Compose([v2.ToImage(), v2.Resize((48, 48)), v2.ToDtype(torch.float32, scale=True)])
    cases: list[tuple[Any, str, dict[str, Any], str]] = [
        (vit(), "gradcam", {"processor": "anything"}, "the transform str is unsupported"),
        (vit(), "gradcam", {"processor": processor(), "transform": steps}, "pass only one of them"),
        (vit(), "gradcam", {"transform": processor(), "resize_mode": "pad"}, "pass only one"),
        (vit(), "gradcam", {"transform": processor(), "img_size": 32}, "pass only one"),
        (glimpses, "glimpses", {"processor": processor()}, "takes no target, transform, img_size"),
        (glimpses, "glimpses", {"transform": steps}, "takes no target, transform, img_size"),
        (glimpses, "glimpses", {"img_size": 24}, "takes no target, transform, img_size"),
        (glimpses, "glimpses", {"class_names": ["a", "b"]}, "takes no target, transform, img_size"),
        (vit(), "gradcam", {"text": "a cat", "class_names": ["a"]}, "text= explains .* no target"),
        (vit(), "gradcam", {"text": "a cat"}, "needs a model with a text tower"),
    ]
    for model, method, options, message in cases:
        with pytest.raises(ValueError, match=message):
            explain(model, PHOTO, method, **options)


def test_another_size_keeps_the_colors_of_a_loaded_model() -> None:
    model = timm.create_model("test_resnet", num_classes=3).eval()
    steps = v2.Compose([
        v2.PILToTensor(), v2.Resize((40, 40)), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.1] * 3, [0.2] * 3),
    ])  # fmt: skip
    loaded = mark(model, Loaded("random", ("a", "b", "c"), steps))
    photo = np.full((40, 40, 3), 255, np.uint8)
    sizes: tuple[dict[str, Any], ...] = ({}, {"img_size": 32}, {"resize_mode": "squash"})
    for options in sizes:
        inputs = Explainer(loaded, **options).prepare(photo).inputs
        torch.testing.assert_close(inputs, torch.full_like(inputs, (1 - 0.1) / 0.2))
    twice = v2.Compose([*steps.transforms, v2.Normalize([0.0] * 3, [0.2] * 3)])
    with pytest.raises(ValueError, match=r"another way than by one mean and std.*pass transform="):
        Explainer(mark(model, Loaded(transform=twice)), img_size=32)


def network(first: nn.Module, outputs: int, *last: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    dimensions = 3 if isinstance(first, nn.Conv3d) else 2
    pool = nn.AdaptiveAvgPool3d(1) if dimensions == 3 else nn.AdaptiveAvgPool2d(1)
    layers = (nn.ReLU(), pool, nn.Flatten(), nn.Linear(5, outputs))
    return nn.Sequential(first, *layers, *last).eval()


def test_networks_that_take_no_images_say_what_they_take() -> None:
    resnet = transformers.ResNetConfig(
        num_channels=6, embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]
    )
    cases: list[tuple[nn.Module, str]] = [
        (network(nn.Conv2d(4, 5, 3), 2), "4 channels, but image has 3: pass arrays .* wrap"),
        (network(nn.Conv2d(9, 5, 3), 2), "takes 9 channels"),
        (network(nn.Conv3d(1, 5, 3), 2), r"0, its first convolution, takes volumes \(Conv3d\)"),
        (nn.Sequential(nn.Conv1d(3, 5, 3)), r"takes sequences \(Conv1d\)"),
        (timm.create_model("test_resnet", in_chans=4).eval(), "takes 4 channels"),
        (transformers.ResNetForImageClassification(resnet).eval(), "takes 6 channels"),
    ]
    for model, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            explain(model, PHOTO, "gradcam", img_size=32)
        assert "give the size" not in str(caught.value)


def test_one_number_stands_for_two_classes() -> None:
    names = ("cat", "dog")
    for last in ((), (nn.Sigmoid(),)):
        model = network(nn.Conv2d(3, 5, 3), 1, *last)
        for bias, label in ((-1.0, "cat"), (1.0, "dog")):
            nn.init.constant_(cast("nn.Linear", model[4]).bias, bias)
            options: dict[str, Any] = {"img_size": 32}
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
            masks = {"num_masks": 8, "score_type": "probabilities"}
            both = [explain(model, PHOTO, "rise", name, **masks, **options)[0] for name in names]
            logits = [explain(model, PHOTO, "rise", name, num_masks=8, **options) for name in names]
            assert len(logits) == 2
            shares = float(both[0].values.mean() + both[1].values.mean())
            ones = explain(
                model, PHOTO, "rise", lambda out: out[:, 0] * 0 + 1, num_masks=8, **options
            )
            assert shares == pytest.approx(float(ones[0].values.mean()), rel=1e-4)
    with pytest.raises(ValueError, match="a name for each of 1 classes, got 3"):
        explain(model, PHOTO, "input_gradient", img_size=32, class_names=("a", "b", "c"))
