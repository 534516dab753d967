"""Panels of captions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from caption_results import caption_of

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.viz.canvas import ACCENT, BACKGROUND
from visattn.viz.captions import caption_figure
from visattn.viz.heatmap import overlay, resize_image, resize_map
from visattn.viz.text import load_font
from visattn.viz.tiles import MARGIN, compute_tile_grid

RNG = np.random.default_rng(2)


def image(y: int, x: int) -> np.ndarray:
    return RNG.integers(0, 256, (y, x, 3), dtype=np.uint8)


def tile_size(size: tuple[int, int], count: int, width: int = 1200) -> tuple[int, int]:
    return compute_tile_grid(size, count + 1, width).tile_size


def caption_panel(
    photo: np.ndarray, words: list[str], maps: np.ndarray, **options: Any
) -> np.ndarray:
    """Return the figure of a caption with maps over its photo, at any size."""
    size = (photo.shape[0], photo.shape[1])
    shown = tile_size(size, len(words), options.get("width", 1200))
    values = np.stack([resize_map(each, shown) for each in maps])
    parts = {key: tuple(options.pop(key, ())) for key in ("log_probs", "gates")}
    said = caption_of(tuple(words), values, size, **parts)
    return np.asarray(caption_figure(photo, said, smooth=False, **options).image)


def tile(
    panel: np.ndarray, index: int, size: tuple[int, int], count: int, lines: int = 1
) -> np.ndarray:
    """Return a tile of a panel without gates; the image is the first."""
    grid = compute_tile_grid(size, count + 1, panel.shape[1])
    row, column = divmod(index, grid.columns)
    top = MARGIN + lines * 36 + 10 + row * (grid.tile_size[0] + 38 + 22)
    left = MARGIN + column * (grid.cell_width + 22)
    return panel[top : top + grid.tile_size[0], left : left + grid.tile_size[1]]


@pytest.mark.parametrize("size", [(97, 131), (131, 97), (13, 17), (40, 1600), (1600, 40), (1, 1)])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_panels_of_any_image_size_and_number_of_words(size: tuple[int, int], count: int) -> None:
    maps = RNG.random((count, *size))
    panel = caption_panel(
        image(*size),
        ["incomprehensibilities"] * count,
        maps,
        log_probs=[-0.5] * count,
        gates=[0.5] * count,
    )
    assert panel.dtype == np.uint8
    assert panel.shape[1] == 1200
    for edge in (panel[:20], panel[-20:], panel[:, :MARGIN], panel[:, -20:]):
        assert (edge == BACKGROUND).all()  # no overflow


def test_tiles_share_a_scale() -> None:
    size, photo = (60, 80), image(240, 320)
    maps = np.stack([np.full(size, value) for value in (0.1, 0.2, 0.4)]).astype(np.float32)
    panel = caption_panel(photo, ["a", "red", "dog"], maps)
    small = resize_image(photo, tile_size((240, 320), 3))
    np.testing.assert_array_equal(tile(panel, 0, (240, 320), 3), small)
    for index, value in enumerate((0.1, 0.2, 0.4), start=1):
        values = np.full(small.shape[:2], value)
        expected = overlay(small, values, vmax=0.2)  # the peak of the middle word
        drawn = tile(panel, index, (240, 320), 3)
        assert np.abs(drawn.astype(int) - expected).max() <= 2


def test_maps_of_the_tile_size_are_not_resampled() -> None:
    photo = image(480, 640)
    geometry = Geometry.identity((480, 640)).resized((256, 341)).cropped(16, 58, (224, 224))
    cells = torch.zeros(1, 14, 14)
    cells[0, 3, 10] = 1
    size = tile_size((480, 640), 1)
    values = (
        AttentionMap(cells, "attend", "words", geometry).resize_to_image(size, smooth=False).numpy()
    )
    panel = caption_panel(photo, ["dog"], values)
    expected = overlay(resize_image(photo, size), values[0], hatched=True)
    np.testing.assert_array_equal(tile(panel, 1, (480, 640), 1), expected)
    hot = np.argwhere(values[0] == 1)
    assert hot.mean(0) + 0.5 == pytest.approx(
        [(30 + 3.5 * 30) * size[0] / 480, (108.86 + 10.5 * 30.03) * size[1] / 640], abs=0.5
    )


def strip(gate: float) -> int:
    panel = caption_panel(image(30, 40), ["a"], np.ones((1, 30, 40)), gates=[gate], width=600)
    return int((panel[:-80] == ACCENT).all(2).sum())


def test_gate_bar_length_is_the_gate_value() -> None:
    lengths = [strip(gate) for gate in (0.0, 0.25, 0.5, 0.999)]
    assert lengths[0] == 0
    assert lengths[2] == pytest.approx(2 * lengths[1], rel=0.1)
    assert lengths[3] == pytest.approx(2 * lengths[2], rel=0.1)


def test_legend_lists_drawn_elements_only() -> None:
    photo, maps = image(30, 40), np.ones((1, 30, 40))
    plain = caption_panel(photo, ["a"], maps)
    maps[0, :, :9] = np.nan
    partly = caption_panel(photo, ["a"], maps)
    assert plain.shape == partly.shape
    assert (plain[-64:, 400:] == BACKGROUND).all()
    assert not (partly[-64:, 350:] == BACKGROUND).all()


def test_zero_and_nan_maps_are_drawn() -> None:
    photo = image(30, 40)
    quiet = caption_panel(photo, ["a"], np.zeros((1, 30, 40)))
    blind = caption_panel(photo, ["a"], np.full((1, 30, 40), np.nan))
    assert quiet.shape == blind.shape


def test_drawing_is_deterministic_and_does_not_modify_inputs() -> None:
    photo, maps = image(97, 131), RNG.random((3, 97, 131))
    kept, known = photo.copy(), maps.copy()
    first = caption_panel(photo, ["a", "red", "dog"], maps, style="light")
    assert (
        first.tobytes() == caption_panel(photo, ["a", "red", "dog"], maps, style="light").tobytes()
    )
    np.testing.assert_array_equal(photo, kept)
    np.testing.assert_array_equal(maps, known)


@pytest.mark.parametrize(
    "word", ["", "two\nlines", "x" * 500, "犬", "\N{DOG FACE}", "a\0b", "$\\bad{"]
)
def test_words_are_drawn_unchanged(word: str) -> None:
    panel = caption_panel(image(30, 40), [word, "dog"], np.ones((2, 30, 40)), width=600)
    assert panel.shape[1] == 600


def test_a_figure_needs_room() -> None:
    with pytest.raises(ValueError, match="a width of 300 pixels at scale 1, got 2 tiles and 299"):
        caption_panel(image(5, 7), ["a"], np.ones((1, 5, 7)), width=299)


def test_golden_image_of_a_row_of_tiles(golden: Callable[[str, np.ndarray], None]) -> None:
    # without text: letters differ between releases of the library that draws them
    photo = np.zeros((24, 32, 3), np.uint8)
    photo[:] = np.linspace((40, 90, 160), (230, 200, 120), 24).astype(np.uint8)[:, None]
    maps = np.zeros((2, 24, 32))
    maps[0, 4:12, 20:28], maps[1, 12:20, 4:12] = 1.0, 0.6
    maps[:, :, :3] = np.nan
    panel = caption_panel(photo, ["a", "b"], maps, vmax=1.0)
    tiles = [tile(panel, index, (24, 32), 2)[:240:10, :320:10] for index in range(3)]
    golden("panel_tiles", np.concatenate(tiles, axis=1))


def test_font_is_that_of_matplotlib() -> None:
    assert load_font(12).getname()[0] == "DejaVu Sans"
