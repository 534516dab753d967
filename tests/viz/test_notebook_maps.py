"""Images of maps in notebooks."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.viz.canvas import ACCENT, BACKGROUND
from visattn.viz.figures import figure as map_figure
from visattn.viz.heatmap import overlay
from visattn.viz.notebook_maps import notebook_map

TOP = 34  # of the first tile


def pixels(content: bytes | None) -> np.ndarray:
    assert content is not None
    return np.asarray(Image.open(io.BytesIO(content)))


def gray(size: tuple[int, int]) -> np.ndarray:
    return np.full((*size, 3), 150, np.uint8)


def test_a_map_lies_as_on_its_image_in_the_colors_of_overlays() -> None:
    geometry = Geometry.identity((40, 80)).cropped(0, 40, (40, 40))
    attention_map = AttentionMap(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), "x", "gate", geometry)
    drawn = pixels(attention_map._repr_png_())[TOP : TOP + 80, 12:172]
    placed = attention_map.resize_to_image((80, 160)).numpy()
    np.testing.assert_array_equal(drawn, overlay(gray((80, 160)), placed))


def test_many_maps_are_tiles_on_one_scale_with_a_legend() -> None:
    values = torch.stack([torch.full((2, 2), level / 6) for level in range(7)])
    drawn = pixels(notebook_map(AttentionMap(values, "x", "gate")))
    brightness = [int(drawn[TOP + 5, 17 + 166 * column].sum()) for column in range(6)]
    assert brightness == sorted(brightness)
    assert len(set(brightness)) == 6
    seventh = drawn[TOP + 166 + 5, 17]
    np.testing.assert_array_equal(seventh, overlay(gray((1, 1)), np.ones((1, 1)))[0, 0])
    assert (drawn[TOP + 166 + 5, 190] == BACKGROUND).all()
    assert (drawn[-60:] != BACKGROUND).any(-1).sum() > 2000


def test_negative_values_are_blue() -> None:
    drawn = pixels(notebook_map(AttentionMap(torch.tensor([[-0.6, 0.6]]), "x", "gradient")))
    left, right = drawn[TOP + 5, 17].astype(int), drawn[TOP + 5, 167].astype(int)
    assert left[2] > left[0] + 50
    assert right[0] > right[2] + 50


def channel_figure(attention_map: AttentionMap) -> np.ndarray:
    return np.array(map_figure(attention_map).image)


def heights(figure: np.ndarray) -> np.ndarray:
    """Return how high the bars of the first plot stand, as a share of its height."""
    area = (figure == ACCENT).all(-1)[TOP : TOP + 121, 56:568]
    return area.sum(0) / 120


@pytest.mark.parametrize("count", [1, 3, 64, 512])
def test_channel_gates_are_bars_from_0_to_1(count: int) -> None:
    values = torch.linspace(0.49, 0.51, count)
    figure = channel_figure(AttentionMap(values, "stage1.se", "channel"))
    bars = heights(figure)
    assert bars[bars > 0].min() == pytest.approx(0.5, abs=0.03)
    assert bars.max() == pytest.approx(0.5, abs=0.03)
    ramp = heights(channel_figure(AttentionMap(torch.linspace(0, 1, 512), "x", "channel")))
    np.testing.assert_allclose(ramp, np.linspace(0, 1, 512), atol=0.02)


def test_more_channels_than_pixels_show_mean_and_maximum() -> None:
    values = torch.zeros(2048)
    values[::4] = 1.0
    figure = channel_figure(AttentionMap(values, "x", "channel"))
    assert heights(figure).mean() == pytest.approx(0.25, abs=0.02)
    column = figure[TOP + 2 : TOP + 80, 200]
    assert (column == column[0]).all()
    assert (column[0] != BACKGROUND).any()  # the maximum


def test_gates_of_several_images_are_rows() -> None:
    single = channel_figure(AttentionMap(torch.rand(1, 8), "x", "channel"))
    double = channel_figure(AttentionMap(torch.rand(2, 8), "x", "channel"))
    assert double.shape[0] - single.shape[0] == 146
    assert pixels(AttentionMap(torch.rand(2, 8), "x", "channel")._repr_png_()).shape == double.shape


@pytest.mark.parametrize("shape", [(1, 1), (5, 3, 7), (2, 3, 4, 5), (300, 2), (40, 9, 9)])
def test_maps_of_any_shape(shape: tuple[int, ...]) -> None:
    info = MapInfo("gradcam", class_name="dog " * 40, target=3, score=2.0)
    for values in (torch.rand(shape), torch.zeros(shape), torch.full(shape, torch.nan)):
        assert notebook_map(AttentionMap(values, "site" * 50, "gradient", info=info))
    assert notebook_map(AttentionMap(torch.rand(0, 2, 2), "x", "gradient")) is None
