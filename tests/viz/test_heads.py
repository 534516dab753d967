"""Figures of all heads of all layers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from explorer_results import explained_model, layer_of

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.viz.heads import all_heads_figure, head_tile_size
from visattn.viz.heatmap import overlay, resize_image

RNG = np.random.default_rng(5)


def figure(
    photo: np.ndarray, heads: tuple[int, ...], grid: tuple[int, int], **options: Any
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a figure of layers with as many heads, and the maps of each layer."""
    maps = [RNG.random((count, 1, *grid)) for count in heads]
    layers = [layer_of(number, each, ("class",)) for number, each in enumerate(maps)]
    layers = [replace(layer, shares=(1.0,)) for layer in layers]
    place = options.pop("geometry", Geometry.identity((photo.shape[0], photo.shape[1])))
    image = LoadedImage(photo, name=options.pop("name", ""))
    explained = explained_model(options.pop("model", "ViT"))
    page = np.asarray(
        all_heads_figure(image, place, explained=explained, layers=layers, **options).image
    )
    return page, [each[:, 0] for each in maps]


def test_rows_are_layers_and_columns_are_heads_and_their_mean() -> None:
    photo = RNG.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    tile = head_tile_size((60, 80), 3)
    page, layers = figure(photo, (3, 2), tile, vmax=0.9)
    small = resize_image(photo, tile)
    corners = []
    for maps in layers:
        for item in (*maps, maps.mean(0)):
            drawn = overlay(small, item, vmax=0.9, opacity=0.85)
            (place,) = [
                (y, x)
                for y, x in np.argwhere(page[:, :, 0] == drawn[0, 0, 0])
                if page[y : y + tile[0], x : x + tile[1]].shape == drawn.shape
                and np.abs(page[y : y + tile[0], x : x + tile[1]].astype(int) - drawn).max() <= 2
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
    page, _ = figure(photo, heads, (3, 4), name="x" * 90, model="y" * 300)
    assert 600 < page.shape[1] < 2000
    assert (page[:, -20:] == page[0, 0]).all()


def test_tiles_can_be_cropped_to_what_the_model_saw() -> None:
    photo = np.zeros((50, 200, 3), np.uint8)
    photo[:, 80:120] = 200
    geometry = Geometry.identity((50, 200)).cropped(0, 80, (50, 40))
    shown = [
        figure(photo, (3,), (3, 4), geometry=geometry, crop=crop)[0].max(-1)
        for crop in (False, True)
    ]
    dark = [(page < 24).sum() for page in shown]  # darker than text
    assert dark[0] > 1000
    assert dark[1] == 0
    assert shown[1].shape[0] > shown[0].shape[0]  # tiles are as high as the part, not as the photo


def test_figure_needs_a_layer() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        figure(np.zeros((5, 7, 3), np.uint8), (), (3, 4))
