"""Figures that compare methods."""

import numpy as np
import pytest

from visattn.viz.layout.grid import compute_tile_size
from visattn.viz.maps.comparison import MethodMap, comparison_panel
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import TRACK
from visattn.viz.maps.resize import resize_image

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


def test_each_tile_is_the_overlay_on_its_own_scale() -> None:
    photo = image()
    tile = compute_tile_size((60, 80), 3, width=700)
    values = [RNG.random(tile), 40 * RNG.random(tile), RNG.normal(size=tile)]
    maps = [
        MethodMap("one", values[0], 0.1, 0.9),
        MethodMap("other", values[1], 0.0, 40.0),
        MethodMap("both ways", values[2], 0.0, 2.0, signed=True),
    ]
    page = comparison_panel(photo, maps, title="a dog", width=700)
    small = resize_image(photo, tile)
    assert contains_tile(page, small)
    for item in maps:
        assert item.values is not None
        drawn = overlay(small, item.values, vmin=item.vmin, vmax=item.vmax, signed=item.signed)
        assert contains_tile(page, drawn)


def test_method_without_a_map_shows_the_reason() -> None:
    maps = [MethodMap("rise", None, note="the map is zero everywhere")]
    page = comparison_panel(image(), maps, title="a dog", width=600)
    assert (page == TRACK).all(-1).sum() > 5000


@pytest.mark.parametrize("size", [(1, 1), (7, 700), (700, 7), (333, 517)])
@pytest.mark.parametrize("count", [1, 5, 15])
def test_pages_of_any_image_size_and_number_of_methods(size: tuple[int, int], count: int) -> None:
    maps = [MethodMap(f"method {n}", np.full(size, np.nan)) for n in range(count)]
    page = comparison_panel(image(size), maps, title="a dog " * 60, subtitle="x" * 400, width=900)
    assert page.shape[1] == 900
    assert (page[:, -20:] == page[0, 0]).all()


def test_drawing_is_deterministic() -> None:
    photo, maps = image(), [MethodMap("a", RNG.random((60, 80)))]
    first, second = (comparison_panel(photo, maps, title="dog") for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize(("count", "width"), [(0, 900), (1, 479)])
def test_page_needs_a_map_and_room(count: int, width: int) -> None:
    maps = [MethodMap("a", np.zeros((60, 80)))] * count
    with pytest.raises(ValueError, match=f"got {count} maps and {width}"):
        comparison_panel(image(), maps, title="dog", width=width)
