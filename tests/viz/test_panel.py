"""The figure of detections: a tile per map, the box in its place, one value range."""

from typing import Any

import numpy as np
import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.values import DetectedObject, Detections
from visattn.viz.detections import box_color, detection_figure, detection_overlay

ORANGE, BLUE = box_color(0), box_color(1)
PLACE = Geometry.identity((60, 90))


def photo() -> np.ndarray:
    return np.full((60, 90, 3), 128, np.uint8)


def result_of(*maps: np.ndarray, labels: str = "cc") -> Detections:
    """Return detections of one place with these maps; label d is blue beside c."""
    box = (10.0, 20.0, 50.0, 40.0)
    objects = tuple(DetectedObject(label, 0.9, box, 3) for label in labels[: len(maps)])
    values = torch.from_numpy(np.array(maps, dtype=np.float32).reshape(-1, 60, 90))
    note = MapInfo(layer=5, outside=[0.0] * len(maps))
    placed = AttentionMap(values, "decoder", "queries", PLACE, note)
    return Detections(objects, placed)


def page_of(*maps: np.ndarray, **options: Any) -> np.ndarray:
    return np.asarray(
        detection_figure(photo(), result_of(*maps), **{"vmax": 1.0, "width": 600, **options}).image
    )


def where(image: np.ndarray, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero((image == color).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_the_overview_has_the_size_of_the_photo_and_its_box() -> None:
    drawn = detection_overlay(photo(), result_of(np.zeros((60, 90))))
    assert drawn.shape == (60, 90, 3)
    left, _, _, bottom = where(drawn, ORANGE)  # the label may exceed the box
    assert (left, bottom) == (10, 40)


def test_there_is_one_tile_for_each_map_with_its_box_in_proportion() -> None:
    values = np.zeros((60, 90))
    without = page_of(values, max_queries=0)
    result = result_of(values, values, labels="dc")
    single = np.asarray(detection_figure(photo(), result, max_queries=1, width=600).image)
    # the overview draws the box, too: its copy in the tile of the query is right of the first
    columns = np.nonzero((single == BLUE).all(2).any(0))[0]
    gaps = np.nonzero(np.diff(columns) > 20)[0]
    assert len(gaps) >= 1
    first, second = columns[: gaps[-1] + 1], columns[gaps[-1] + 1 :]
    assert second.max() - second.min() == pytest.approx(first.max() - first.min(), abs=3)
    assert single.shape[1] == without.shape[1] == 600


def test_the_map_is_drawn_on_one_range_for_all_tiles() -> None:
    low, high = np.full((60, 90), 0.1), np.full((60, 90), 0.9)
    pages = [page_of(low, values) for values in (low, high)]
    different = (pages[0] != pages[1]).any(2)
    rows, columns = np.nonzero(different)
    assert different.any()  # the second tile only: the first map has the same colors beside both
    tile = different[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert tile.mean() > 0.8
    assert tile.size < 0.5 * different.size


def test_unseen_pixels_clipped_values_and_no_detections_are_drawn() -> None:
    values = np.full((60, 90), 2.0)
    values[:, :30] = np.nan
    page, plain = page_of(values), page_of(np.ones((60, 90)))
    assert page.shape[0] > plain.shape[0]  # the legend names both, on a line of their own
    empty = page_of()
    assert empty.dtype == np.uint8
    assert empty.shape[1] == 600
