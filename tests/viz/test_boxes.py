"""Boxes and points are drawn where they are."""

import numpy as np
import pytest

from visattn.viz.detections import LabeledBox, box_color, draw_boxes, draw_points

ORANGE = box_color(0)


def blank(size: tuple[int, int] = (60, 90)) -> np.ndarray:
    return np.full((*size, 3), 128, np.uint8)


def where(image: np.ndarray, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the pixels of a color."""
    rows, columns = np.nonzero((image == color).all(2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("box", [(10, 20, 50, 40), (0, 0, 90, 60), (80, 50, 83, 53)])
def test_the_line_bounds_the_box_from_inside(box: tuple[int, ...]) -> None:
    drawn = draw_boxes(blank(), [LabeledBox(np.array(box, float), "", ORANGE)])
    assert where(drawn, ORANGE) == box


def test_a_label_stays_on_the_image_and_the_image_is_unchanged() -> None:
    image = blank()
    box = LabeledBox(np.array([70.0, 0.0, 90.0, 20.0]), "a very long label of a class", ORANGE)
    drawn = draw_boxes(image, [box])
    assert drawn.shape == image.shape
    assert bool((image == 128).all())
    assert bool((drawn[:14] != 128).any())


def test_points_lie_at_their_place_and_grow_with_their_weight() -> None:
    points = np.array([[20.5, 30.5, 0.9], [70.5, 30.5, 0.1], [-40.0, 5.0, 0.0]])
    drawn = draw_points(blank(), points, ORANGE)
    heavy, light = (where(side, ORANGE) for side in (drawn[:, :45], drawn[:, 45:]))
    assert (heavy[0] + heavy[2]) / 2 == pytest.approx(20.5, abs=1)
    assert (heavy[1] + heavy[3]) / 2 == pytest.approx(30.5, abs=1)
    assert (light[0] + light[2]) / 2 + 45 == pytest.approx(70.5, abs=1)
    assert heavy[2] - heavy[0] > light[2] - light[0]
