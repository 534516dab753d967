"""Figures of all heads of all layers."""

import numpy as np
import pytest

from visattn.viz.maps.heads import LayerHeads, head_grid, head_tile_size
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.resize import resize_image

RNG = np.random.default_rng(5)


def rows(heads: tuple[int, ...], size: tuple[int, int]) -> list[LayerHeads]:
    return [
        LayerHeads(f"layer {n}", RNG.random((count, *size)), tuple(range(count)))
        for n, count in enumerate(heads)
    ]


def test_rows_are_layers_and_columns_are_heads_and_their_mean() -> None:
    photo = RNG.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    tile = head_tile_size((60, 80), 3)
    layers = rows((3, 2), tile)
    page = head_grid(photo, layers, title="dog", vmax=0.9)
    small = resize_image(photo, tile)
    corners = []
    for layer in layers:
        for item in (*layer.maps, layer.maps.mean(0)):
            drawn = overlay(small, item, vmax=0.9, opacity=0.85)
            (place,) = [
                (y, x)
                for y, x in np.argwhere(page[:, :, 0] == drawn[0, 0, 0])
                if np.array_equal(page[y : y + tile[0], x : x + tile[1]], drawn)
            ]
            corners.append(place)
    y, x = zip(*corners, strict=True)
    assert len({*y[:4]}) == len({*y[4:]}) == 1
    assert y[4] > y[0]
    assert x[:2] == x[4:6]
    assert x[3] == x[6]  # the mean of a layer with fewer heads stands below the others


@pytest.mark.parametrize("heads", [(1,), (3, 6, 12, 24), (16,) * 5])
@pytest.mark.parametrize("size", [(1, 1), (640, 33), (33, 640)])
def test_figures_of_any_image_size_and_number_of_heads(
    heads: tuple[int, ...], size: tuple[int, int]
) -> None:
    photo = np.zeros((*size, 3), np.uint8)
    page = head_grid(photo, rows(heads, (3, 4)), title="x" * 90, subtitle="y" * 300, vmax=1.0)
    assert 600 < page.shape[1] < 2000
    assert (page[:, -20:] == page[0, 0]).all()


def test_figure_needs_a_layer() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        head_grid(np.zeros((5, 7, 3), np.uint8), [], title="dog", vmax=1.0)
