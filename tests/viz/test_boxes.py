"""Boxes and labels are drawn where they are."""

from dataclasses import replace

import numpy as np
import pytest

from visattn.viz.canvas import Canvas
from visattn.viz.detections import LabeledBox, box_color, draw_boxes

ORANGE = box_color(0)


def blank(size: tuple[int, int] = (60, 90)) -> Canvas:
    canvas = Canvas(size[1], size[0])
    canvas.paste(np.full((*size, 3), 128, np.uint8), (0, 0))
    return canvas


def with_boxes(boxes: list[LabeledBox], size: tuple[int, int] = (60, 90)) -> np.ndarray:
    canvas = blank(size)
    draw_boxes(canvas, boxes)
    return np.asarray(canvas.paint())


def where(image: np.ndarray, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the pixels of a color."""
    rows, columns = np.nonzero((image == color).all(2))
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
