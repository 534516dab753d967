"""Images of maps in notebooks."""

import io

import numpy as np
import torch
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap, heatmap_png
from visattn.viz.heatmap import colormap_lut


def pixels(content: bytes | None) -> np.ndarray:
    assert content is not None
    return np.asarray(Image.open(io.BytesIO(content)))


def test_colors_are_those_of_magma() -> None:
    ramp = torch.linspace(0, 1, 256).view(1, 1, 256)
    drawn = pixels(heatmap_png(ramp, 0.0, 1.0, side=256)).astype(int)[0]
    assert np.abs(drawn - colormap_lut("magma").astype(int)).max() <= 12


def test_a_map_lies_as_on_its_image() -> None:
    geometry = Geometry.identity((40, 80)).cropped(0, 40, (40, 40))
    values = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    attention_map = AttentionMap(values, "gate", "gate", geometry)
    drawn = pixels(attention_map._repr_png_()).astype(int)
    assert drawn.shape == (80, 160, 3)
    assert (drawn[:, :79] == 228).all()  # not seen by the network
    row, column = divmod(int(drawn[:, 80:].sum(-1).argmax()), 80)
    assert row >= 55
    assert column >= 55


def test_many_maps_are_tiles_on_one_scale() -> None:
    values = torch.stack([torch.full((2, 2), level / 6) for level in range(7)])
    drawn = pixels(heatmap_png(values, 0.0, 1.0, side=10)).astype(int)
    assert drawn.shape == (2 * 14 - 4, 6 * 14 - 4, 3)
    brightness = [drawn[5, 14 * column + 5].sum() for column in range(6)]
    assert brightness == sorted(brightness)
    assert tuple(drawn[19, 5]) == (252, 253, 191)  # the seventh
    assert (drawn[19, 19:] == 228).all()


def test_negative_values_have_red_and_blue_swapped() -> None:
    left, right = pixels(heatmap_png(torch.tensor([[[-0.6, 0.6]]]), 0.0, 1.0, side=2))[0]
    assert left.tolist() == right.tolist()[::-1]
    assert left[2] > left[0]


def test_channel_gates_have_no_image() -> None:
    assert AttentionMap(torch.rand(4), "gate", "channel")._repr_png_() is None
