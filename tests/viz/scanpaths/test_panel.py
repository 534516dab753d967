"""Panels, grids and animations of scan paths."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from scanpath_data import CLASSES, miniature_scan, photo_of

from visattn.results.values import ScanPath, format_percent
from visattn.viz.canvas import ACCENT, BACKGROUND, Canvas
from visattn.viz.scanpaths.animation import (
    FIRST_DURATION,
    GLIMPSE_DURATION,
    LAST_DURATION,
    glimpse_animation,
    glimpse_wall,
)
from visattn.viz.scanpaths.panel import class_colors, glimpse_panel, glimpse_strip
from visattn.viz.scanpaths.path import draw_patch, draw_scan_path, glimpse_mosaic, place_image
from visattn.viz.tiles import MARGIN

SHAPES = [(40, 60), (60, 40), (1, 1), (5, 400), (400, 5), (28, 28), (480, 640)]


def painted(canvas: Canvas) -> np.ndarray:
    return np.asarray(canvas.paint())


def panel_of(scan: ScanPath) -> np.ndarray:
    return np.asarray(glimpse_panel(photo_of(scan), scan, name="a.png").image)


def gif_of(scan: ScanPath, **options: Any) -> bytes:
    return glimpse_animation(photo_of(scan), scan, **options)


def wall_of(scans: list[ScanPath], **options: Any) -> bytes:
    return glimpse_wall([photo_of(scan) for scan in scans], scans, **options)


def frames(moving: bytes) -> list[np.ndarray]:
    with Image.open(io.BytesIO(moving)) as opened:
        return [np.array(item.convert("RGB")) for item in ImageSequence.Iterator(opened)]


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


def test_animation_of_a_wide_image_has_the_mosaic_below_the_path() -> None:
    scan = miniature_scan((48, 160))
    view = place_image((48, 160), scan.boxes.numpy(), (1000, 600 - 2 * 14))
    last = frames(gif_of(scan, width=600))[-1].astype(int)
    rows, columns = view.canvas_size
    left, top = (600 - columns) // 2 + view.offset[0], 14 + rows + 12 + view.offset[1]
    whole = glimpse_mosaic(
        scan.patches.numpy(), view.boxes_on_resized_image(scan.boxes.numpy()), view.image_size
    )
    actual = last[top : top + whole.shape[0], left : left + whole.shape[1]]
    assert np.abs(actual - whole).mean() < 8  # a palette has 256 colors


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


def test_animation_has_a_frame_for_the_image_each_glimpse_and_the_end() -> None:
    scan = miniature_scan((40, 60), glimpses=4)
    moving = gif_of(scan, width=320)
    actual = frames(moving)
    assert len(actual) == 6
    with Image.open(io.BytesIO(moving)) as opened:
        times = [item.info["duration"] for item in ImageSequence.Iterator(opened)]
    assert times == [FIRST_DURATION, *[GLIMPSE_DURATION] * 4, LAST_DURATION]
    assert {item.shape[1] for item in actual} == {320}


def test_bar_lengths_are_the_probabilities() -> None:
    shares = np.array([[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]])
    scan = replace(
        miniature_scan(), probabilities=torch.from_numpy(shares), class_names=("cat", "dog")
    )
    actual = frames(gif_of(scan, width=320))
    cat, dog = class_colors(2)
    lengths = [
        [
            (np.abs(item[-58:, 45:260].astype(int) - color).max(2) < 3).sum(1).max()
            for color in (cat, dog)
        ]
        for item in actual
    ]
    assert max(lengths[0][0], lengths[0][1]) < 20  # nothing is known before the first glimpse
    full = lengths[2][1] / 0.5
    np.testing.assert_allclose(lengths[1:4], shares * full, atol=3)


def test_long_animations_are_drawn_smaller() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 300, 300), dtype=np.uint8)
    scan = replace(miniature_scan((300, 300)), pixels=torch.from_numpy(noise))
    small = gif_of(scan, width=400, max_bytes=90_000)
    assert 240 <= frames(small)[0].shape[1] < 400


@pytest.mark.parametrize("size", SHAPES[:5])
def test_animations_of_any_image_size(size: tuple[int, int]) -> None:
    assert len(frames(gif_of(miniature_scan(size), width=240))) == 5


def test_grid_animation_is_synchronized_and_marks_errors() -> None:
    right, wrong = CLASSES[-1], CLASSES[0]
    scans = [miniature_scan((40, 60), seed=seed) for seed in (1, 2, 3)]
    moving = wall_of(scans, truths=[right, wrong, None], side=100, columns=3)
    actual = frames(moving)
    assert len(actual) == 5
    assert actual[0].shape == (2 * 14 + 100 + 30, 2 * 14 + 3 * 112 - 12, 3)
    last = actual[-1][114:].astype(int)
    cells = [last[:, 14 + index * 112 : 114 + index * 112] for index in range(3)]
    reds = [(np.abs(cell - (186, 84, 84)).max(2) < 8).sum() for cell in cells]
    greens = [(np.abs(cell - ACCENT).max(2) < 8).sum() for cell in cells]
    assert reds[1] > 10 > max(reds[0], reds[2])
    assert greens[0] > 10 > max(greens[1], greens[2])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_grid_animations_of_any_number_of_scans(count: int) -> None:
    assert len(frames(wall_of([miniature_scan((30, 30))] * count, side=40))) == 5


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


def test_panels_and_animations_write_labels_where_they_are_read() -> None:
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
    moving, still = (frames(gif_of(each)) for each in (scan, without))
    changed = [
        int((np.abs(a.astype(int) - b)[:200, :270] > 90).any(2).sum()) > 20
        for a, b in zip(moving, still, strict=True)
    ]
    assert changed == [False, False, True, True, True, True]  # from the first label on


def test_paths_of_different_lengths_share_a_wall() -> None:
    long, short = sequence_scan([1, 0, 2]), sequence_scan([1, 0])
    shown = frames(wall_of([long, short], truths=["dog cat bird", "dog"], side=80))
    assert len(shown) == 8
    right = [frame[:110, 110:] for frame in shown]
    assert (np.abs(right[5].astype(int) - right[7]) < 12).all()  # complete after its four glimpses


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.5, "50 %"), (0.996, ">99 %"), (1.0, "100 %")],
)
def test_percentages_are_rounded_to_100_only_when_exact(share: float, text: str) -> None:
    assert format_percent(share) == text


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (
            lambda: gif_of(miniature_scan(), width=239),
            "at least 240 pixels wide, got 239",
        ),
        (lambda: wall_of([]), "got 0 scan paths"),
        (lambda: wall_of([miniature_scan()], truths=["a", "b"]), "2 truths"),
    ],
)
def test_invalid_inputs_are_refused(draw: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        draw()


def test_drawing_is_deterministic_and_does_not_modify_inputs() -> None:
    scan = miniature_scan()
    kept = photo_of(scan).copy()
    assert panel_of(scan).tobytes() == panel_of(scan).tobytes()
    assert gif_of(scan, width=240) == gif_of(scan, width=240)
    np.testing.assert_array_equal(photo_of(scan), kept)
