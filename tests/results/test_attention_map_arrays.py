"""Maps of other libraries: placed by their transform, and handed back as arrays."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import v2

import visattn
from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.results.attention_map import AttentionMap, transform_geometry

SIZE = (35, 49)  # of the network's input
BLOCK = (slice(40, 60), slice(30, 70))  # rows and columns of the photo


def photo() -> np.ndarray:
    pixels = np.full((83, 97, 3), 20, np.uint8)
    pixels[BLOCK] = 250
    return pixels


def test_attributions_of_the_channels_add_up_to_the_map() -> None:
    generator = torch.Generator().manual_seed(1)
    geometry = Geometry.identity((41, 61)).resized((15, 21))
    small = torch.rand(2, 5, 7, generator=generator)
    maps = AttentionMap(small, "x", "gradient", geometry)
    attributions = maps.to_attributions(channels=3)
    assert attributions.shape == (2, 3, 15, 21)
    expected = nn.functional.interpolate(small[None], (15, 21), mode="bilinear")[0]
    torch.testing.assert_close(attributions.sum(1), expected)
    back = AttentionMap.from_array(attributions, geometry, channels="sum")
    torch.testing.assert_close(back.values, expected)
    np.testing.assert_array_equal(np.asarray(maps), small.numpy())
    for spec in (ResizeSpec(SIZE, "pad"), [v2.Resize(SIZE), v2.RandomHorizontalFlip(1.0)]):
        placed = AttentionMap.from_array(small, spec, (83, 97)).geometry
        assert placed == transform_geometry(spec, (83, 97))


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        nn.Linear(54, 4),
    ).eval()  # fmt: skip


def test_maps_of_captum_lie_where_ours_do() -> None:
    captum: Any = pytest.importorskip("captum.attr")
    model, steps = network(), v2.Compose([
        v2.ToImage(), v2.Resize(41), v2.CenterCrop(SIZE), v2.ToDtype(torch.float32, scale=True),
    ])  # fmt: skip
    [ours] = visattn.explain(
        model, photo(), "input_x_gradient", 2, transform=steps, class_names=[*"abcd"]
    )
    x = steps(v2.functional.to_image(photo()))[None].requires_grad_()
    attributions = captum.InputXGradient(model).attribute(x, target=2)
    theirs = AttentionMap.from_array(attributions, steps, (83, 97), channels="sum")[0]
    torch.testing.assert_close(theirs.values, ours.values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        theirs.resize_to_image(), ours.resize_to_image(), equal_nan=True, atol=1e-6, rtol=1e-5
    )
