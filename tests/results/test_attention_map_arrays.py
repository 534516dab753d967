"""Maps of other libraries: placed by their transform, and handed back as arrays."""

import numpy as np
import torch
from torch import nn
from torchvision.transforms import v2

from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.results.attention_map import AttentionMap, transform_geometry


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
    for spec in (ResizeSpec((35, 49), "pad"), [v2.Resize((35, 49)), v2.RandomHorizontalFlip(1.0)]):
        placed = AttentionMap.from_array(small, spec, (83, 97)).geometry
        assert placed == transform_geometry(spec, (83, 97))
