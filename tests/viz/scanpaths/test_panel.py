"""Panels of scan paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scanpath_data import CLASSES, miniature_scan, photo_of

from visattn.results.values import ScanPath, format_percent
from visattn.viz.canvas import BACKGROUND, Canvas
from visattn.viz.scanpaths.panel import glimpse_panel, glimpse_strip
from visattn.viz.scanpaths.path import draw_patch, draw_scan_path, glimpse_mosaic, place_image
from visattn.viz.tiles import MARGIN

SHAPES = [(40, 60), (60, 40), (1, 1), (5, 400), (400, 5), (28, 28), (480, 640)]


def painted(canvas: Canvas) -> np.ndarray:
    return np.asarray(canvas.paint())


def panel_of(scan: ScanPath) -> np.ndarray:
    return np.asarray(glimpse_panel(photo_of(scan), scan, name="a.png").image)


@pytest.mark.parametrize("size", SHAPES)
def test_panels_of_any_image_size(size: tuple[int, int]) -> None:
    panel = panel_of(miniature_scan(size))
    assert panel.shape[1] == 1200
    for edge in (panel[:20], panel[-20:], panel[:, : MARGIN - 1], panel[:, -20:]):
        assert (edge == BACKGROUND).all()  # no overflow


@pytest.mark.parametrize(("glimpses", "scales", "channels"), [(1, 1, 1), (12, 4, 1), (30, 1, 3)])
def test_panels_of_any_glimpses(glimpses: int, scales: int, channels: int) -> None:
    scan = miniature_scan((60, 90), glimpses=glimpses, scales=scales, channels=channels)
    panel = panel_of(scan)
    assert (panel[:, -20:] == BACKGROUND).all()
    assert (panel[-20:] == BACKGROUND).all()


def test_panel_shows_path_mosaic_and_each_glimpse() -> None:
    scan = miniature_scan((40, 60))
    panel = panel_of(scan)
    view = place_image((40, 60), scan.boxes.numpy(), (400, 400))
    above = MARGIN + 25 + 40 + 24
    path = painted(
        draw_scan_path(
            view.paste_image(photo_of(scan)),
            view.boxes_on_canvas(scan.boxes.numpy()),
            image_area=view.image_area,
        )
    )
    height, width = path.shape[:2]
    np.testing.assert_array_equal(panel[above : above + height, MARGIN : MARGIN + width], path)
    whole = glimpse_mosaic(
        scan.patches.numpy(), view.boxes_on_resized_image(scan.boxes.numpy()), view.image_size
    )
    top, left = above + view.offset[1], MARGIN + 422
    actual = panel[top : top + whole.shape[0], left : left + whole.shape[1]]
    np.testing.assert_array_equal(actual, whole)
    strip = painted(glimpse_strip(scan))
    below = above + max(height, 240) + 30
    np.testing.assert_array_equal(panel[below : below + len(strip), MARGIN:-MARGIN], strip)


def test_mosaic_of_a_wide_image_lies_below_its_scan_path_at_the_same_scale() -> None:
    scan = miniature_scan((48, 160))
    view = place_image((48, 160), scan.boxes.numpy(), (400, 822))
    path = painted(
        draw_scan_path(
            view.paste_image(photo_of(scan)),
            view.boxes_on_canvas(scan.boxes.numpy()),
            image_area=view.image_area,
        )
    )
    whole = glimpse_mosaic(
        scan.patches.numpy(), view.boxes_on_resized_image(scan.boxes.numpy()), view.image_size
    )
    panel, above = panel_of(scan), MARGIN + 25 + 40 + 24
    rows, columns = path.shape[:2]
    assert columns > 700
    np.testing.assert_array_equal(panel[above : above + rows, MARGIN : MARGIN + columns], path)
    top, left = above + rows + 22 + 24, MARGIN + view.offset[0]
    actual = panel[top : top + whole.shape[0], left : left + whole.shape[1]]
    np.testing.assert_array_equal(actual, whole)
    strip = painted(glimpse_strip(scan))
    below = top + whole.shape[0] + 30
    np.testing.assert_array_equal(panel[below : below + len(strip), MARGIN:-MARGIN], strip)


def test_strip_shows_the_glimpses_in_order() -> None:
    scan = miniature_scan(glimpses=4, scales=2)
    strip, side = painted(glimpse_strip(scan)), 136
    for index in range(4):
        for scale in range(2):
            x, y = 40 + index * (side + 22), 32 + scale * (side + 8)
            tile = draw_patch(scan.patches[index, scale].numpy(), side)
            np.testing.assert_array_equal(strip[y : y + side, x : x + side], tile)
    for scale in range(2):  # its factor, at the left
        y = 32 + scale * (side + 8)
        assert (strip[y : y + side, :40] != strip[0, -1]).any()


def test_many_glimpses_use_several_rows() -> None:
    few, many = (
        painted(glimpse_strip(miniature_scan(glimpses=count, scales=1))) for count in (13, 14)
    )
    assert few.shape[0] < 180 < many.shape[0]


def sequence_scan(classes: list[int], *, glimpses_per_label: int = 2) -> ScanPath:
    """Return a scan that reads these classes, of CLASSES with cow as the end; the rest is dim."""
    count = len(classes) * glimpses_per_label
    scan = miniature_scan((300, 400), glimpses=count, scales=1)
    probabilities = np.full((count, len(CLASSES)), 0.01)
    for label, index in enumerate(classes):
        probabilities[(label + 1) * glimpses_per_label - 1, index] = 0.94
    return replace(
        scan,
        pixels=torch.full_like(scan.pixels, 90),
        probabilities=torch.from_numpy(probabilities),
        glimpses_per_label=glimpses_per_label,
        end_class="cow",
    )


def test_labels_are_read_in_order_up_to_the_end() -> None:
    scan = sequence_scan([1, 0, 5, 2])  # dog, cat, the end, and what comes after it
    assert [(label.name, label.glimpse) for label in scan.labels] == [
        ("dog", 1), ("cat", 3), ("cow", 5),
    ]  # fmt: skip
    assert scan.tags == {1: "dog", 3: "cat", 5: "cow"}
    assert (scan.prediction, scan.probability) == ("dog cat", pytest.approx(0.94**3))
    assert sequence_scan([5, 1]).prediction == "cow"
    single = miniature_scan()
    assert single.tags == {}
    assert single.prediction == CLASSES[-1]
    assert single.probability == float(single.probabilities[-1, -1])


def test_panels_write_labels_where_they_are_read() -> None:
    scan, without = sequence_scan([1, 0]), sequence_scan([1, 0])
    panel = panel_of(scan)
    without = replace(without, glimpses_per_label=None)
    view = place_image(photo_of(scan).shape[:2], scan.boxes.numpy(), (400, 400))
    boxes = view.boxes_on_canvas(scan.boxes.numpy())
    canvas = view.paste_image(photo_of(scan))
    plain = painted(draw_scan_path(canvas, boxes, image_area=view.image_area))
    tagged = painted(draw_scan_path(canvas, boxes, image_area=view.image_area, tags=scan.tags))
    above = MARGIN + 25 + 40 + 24
    assert (panel[above : above + len(tagged), MARGIN : MARGIN + tagged.shape[1]] == tagged).all()
    rows, columns = np.nonzero((tagged != plain).any(2))
    for label in scan.labels:  # near the box, and nowhere else
        left, top, right, bottom = boxes[label.glimpse, 0]
        near = (rows > top - 30) & (rows < bottom + 30) & (columns > left - 60)
        assert (near & (columns < right + 60)).sum() > 100
        rows, columns = rows[~near], columns[~near]
    assert not len(rows)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.5, "50 %"), (0.996, ">99 %"), (1.0, "100 %")],
)
def test_percentages_are_rounded_to_100_only_when_exact(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_drawing_is_deterministic_and_does_not_modify_inputs() -> None:
    scan = miniature_scan()
    kept = photo_of(scan).copy()
    assert panel_of(scan).tobytes() == panel_of(scan).tobytes()
    np.testing.assert_array_equal(photo_of(scan), kept)
