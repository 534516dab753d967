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
