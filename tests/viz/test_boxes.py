"""Boxes and points are drawn where they are."""

from dataclasses import replace

import numpy as np
import pytest

from visattn.viz.canvas import Canvas
from visattn.viz.detections import LabeledBox, box_color, draw_boxes, draw_points

ORANGE = box_color(0)


def blank(size: tuple[int, int] = (60, 90)) -> Canvas:
    canvas = Canvas(size[1], size[0])
    canvas.paste(np.full((*size, 3), 128, np.uint8), (0, 0))
    return canvas


def with_boxes(boxes: list[LabeledBox], size: tuple[int, int] = (60, 90)) -> np.ndarray:
    canvas = blank(size)
    draw_boxes(canvas, boxes)
    return np.asarray(canvas.paint())


def with_points(
    points: np.ndarray, size: tuple[int, int], box: np.ndarray | None = None
) -> np.ndarray:
    canvas = blank(size)
    draw_points(canvas, points, ORANGE, box=box)
    return np.asarray(canvas.paint())


def where(image: np.ndarray, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the pixels of a color."""
    rows, columns = np.nonzero((image == color).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("box", [(10, 20, 50, 40), (0, 0, 90, 60), (80, 50, 83, 53)])
def test_the_line_bounds_the_box_from_inside(box: tuple[int, ...]) -> None:
    assert where(with_boxes([LabeledBox(np.array(box, float), "", ORANGE)]), ORANGE) == box


def test_a_label_stays_on_the_image() -> None:
    box = LabeledBox(np.array([70.0, 0.0, 90.0, 20.0]), "a very long label of a class", ORANGE)
    drawn, plain = with_boxes([box]), with_boxes([replace(box, text="")])
    rows, columns = np.nonzero((drawn != plain).any(2))
    assert len(rows) > 200
    assert columns.max() - columns.min() < 90


def test_points_lie_at_their_place_and_grow_with_their_weight() -> None:
    points = np.array([[20.5, 30.5, 0.9], [70.5, 30.5, 0.1], [-40.0, 5.0, 0.0]])
    changed = (with_points(points, (240, 90)) != 128).any(2)
    heavy, light = (extent(side) for side in (changed[:, :45], changed[:, 45:]))
    assert (heavy[0] + heavy[2]) / 2 == pytest.approx(20.5, abs=1)
    assert (heavy[1] + heavy[3]) / 2 == pytest.approx(30.5, abs=1)
    assert (light[0] + light[2]) / 2 + 45 == pytest.approx(70.5, abs=1)
    assert heavy[2] - heavy[0] > light[2] - light[0]


def test_rings_leave_a_small_object_visible() -> None:
    rng = np.random.default_rng(3)
    box = np.array([200.0, 150.0, 240.0, 190.0])
    places = rng.uniform(box[:2], box[2:], (32, 2))
    points = np.column_stack([places, np.full(32, 1 / 32)])
    drawn = with_points(points, (400, 500), box=box)
    inside = (drawn != 128).any(2)[150:190, 200:240]
    assert 0.1 < inside.mean() < 0.65
    points[0, 2] = 1
    large = with_points(points, (400, 500))
    small = with_points(points, (400, 500), box=box)
    assert (small != 128).sum() < (large != 128).sum()


def test_labels_do_not_overlap() -> None:
    colors = [(10 * number + 5, 200, 40) for number in range(5)]
    boxes = [
        LabeledBox(np.array([100.0 + 3 * number, 100.0, 220.0, 180.0]), "a dog 0.90", color)
        for number, color in enumerate(colors)
    ]
    drawn = with_boxes(boxes, (300, 400))
    alone = with_boxes(boxes[:1], (300, 400))
    plate = (alone == colors[0]).all(2).sum() - 4 * 120
    for color in colors:
        assert (drawn == color).all(2).sum() > 0.8 * plate


def test_a_label_does_not_hide_a_small_object() -> None:
    large = LabeledBox(np.array([100.0, 100.0, 200.0, 200.0]), "a dog 0.90", (1, 200, 40))
    small = LabeledBox(np.array([102.0, 84.0, 118.0, 99.0]), "", (200, 30, 50))
    drawn = with_boxes([large, small], (300, 400))
    assert (drawn[84:99, 102:118] != (1, 200, 40)).any(2).all()
