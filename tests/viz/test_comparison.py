"""Figures that compare methods."""

from typing import Any

import numpy as np
import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.scale import MapScale
from visattn.viz.canvas import TRACK
from visattn.viz.figures import figure
from visattn.viz.heatmap import overlay, resize_image
from visattn.viz.tiles import compute_tile_grid

RNG = np.random.default_rng(3)


def image(size: tuple[int, int] = (60, 80)) -> np.ndarray:
    return RNG.integers(0, 256, (*size, 3), dtype=np.uint8)


def contains_tile(page: np.ndarray, tile: np.ndarray) -> bool:
    """Whether a tile occurs on a page, pixel by pixel."""
    windows = np.lib.stride_tricks.sliding_window_view(page, (1, 7, 3))[:, :, 0, 0]
    for y, x in np.argwhere((windows == tile[0, :7]).all((2, 3))):
        part = page[y : y + tile.shape[0], x : x + tile.shape[1]]
        if part.shape == tile.shape and (part == tile).all():
            return True
    return False


def placed(values: np.ndarray, size: tuple[int, int] = (60, 80), **info: Any) -> AttentionMap:
    geometry = Geometry.identity(size)
    return AttentionMap(torch.from_numpy(values), "site", "gradient", geometry, MapInfo(**info))


def test_each_tile_is_the_overlay_on_its_own_scale() -> None:
    photo = image()
    tile = compute_tile_grid((60, 80), 4, 700).tile_size
    values = [RNG.random(tile), 40 * RNG.random(tile), RNG.normal(size=tile)]
    scales = [
        MapScale("image", 0.1, 0.9),
        MapScale("image", 0.0, 40.0),
        MapScale("image", 0.0, 2.0, signed=True),
    ]
    maps = [placed(each) for each in values]
    page = np.asarray(
        figure(maps, photo, scales=scales, title="dog", width=700, smooth=False).image
    )
    small = resize_image(photo, tile)
    assert contains_tile(page, small)
    for each, scale in zip(values, scales, strict=True):
        limits: dict[str, Any] = {"vmin": scale.vmin, "vmax": scale.vmax, "signed": scale.signed}
        assert contains_tile(page, overlay(small, each, **limits))


def test_method_without_a_map_shows_the_reason() -> None:
    page = np.asarray(figure([placed(np.zeros((3, 4)))], image(), title="a dog", width=600).image)
    assert (page == TRACK).all(-1).sum() > 5000


@pytest.mark.parametrize("size", [(1, 1), (7, 700), (700, 7), (333, 517)])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_pages_of_any_image_size_and_number_of_methods(size: tuple[int, int], count: int) -> None:
    maps = [placed(np.ones((3, 4)), size) for _ in range(count)]
    page = np.asarray(
        figure(maps, image(size), title="a dog " * 60, subtitle="x" * 400, width=900).image
    )
    assert page.shape[1] == 900
    assert (page[:, -20:] == page[0, 0]).all()


def test_page_needs_a_map_and_room() -> None:
    with pytest.raises(ValueError, match="a figure needs maps"):
        figure([], image(), title="dog")
    with pytest.raises(ValueError, match="2 tiles and 299 pixels"):
        figure([placed(np.ones((3, 4)))], image(), title="dog", width=299)
