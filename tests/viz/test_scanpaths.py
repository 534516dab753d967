"""Scan paths: windows and numbers, mosaics, probabilities, coverage."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from figure_texts import colors, texts
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from visattn.geometry.affine import Geometry
from visattn.results.info import MapInfo
from visattn.results.values import ScanPath, format_percent
from visattn.viz.figures import rgb
from visattn.viz.scanpaths import (
    Coverage,
    _dim_outside,
    _separate_points,
    draw_probabilities,
    draw_scan_path,
    glimpse_colors,
    glimpse_figure,
    glimpse_mosaic,
    glimpse_overlay,
    top_classes,
)

SHAPES = [(40, 60), (60, 40), (1, 1), (5, 400), (400, 5), (28, 28), (480, 640)]
CLASSES = ("cat", "dog", "bird", "fish", "horse", "cow", "sheep")


def miniature_scan(
    size: tuple[int, int] = (40, 60),
    *,
    glimpses: int = 3,
    scales: int = 2,
    glimpse: int = 5,
    channels: int = 3,
    classes: tuple[str, ...] = CLASSES,
    seed: int = 3,
) -> ScanPath:
    """Return a scan in which the probability of the last class increases."""
    rng = np.random.default_rng(seed)
    middles = rng.uniform((0, 0), (size[1], size[0]), (glimpses, 1, 2))
    half = 0.1 * max(size) * 2.0 ** np.arange(scales)[:, None]
    logits = rng.normal(size=(glimpses, len(classes)))
    logits[:, -1] += np.linspace(0, 6, glimpses)
    shares = np.exp(logits)
    down, along = np.mgrid[: size[0], : size[1]] / max(size)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along), np.sin(11 * along * down))
    patches = rng.integers(0, 256, (glimpses, scales, channels, glimpse, glimpse), dtype=np.uint8)
    place, note = Geometry.identity(size), MapInfo(policy="greedy", seed=0)
    return ScanPath(
        classes,
        torch.from_numpy(shares / shares.sum(1, keepdims=True)),
        torch.zeros(glimpses, 2),
        torch.from_numpy(np.concatenate([middles - half, middles + half], -1)),
        torch.from_numpy(patches),
        torch.from_numpy(
            np.stack([127 + 60 * layer for layer in layers[:channels]]).astype(np.uint8)
        ),
        place,
        note,
    )


def photo_of(scan: ScanPath) -> np.ndarray:
    """Return the photo of a scan of `miniature_scan`."""
    return np.ascontiguousarray(scan.pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())


def test_colors_are_ordered_with_increasing_lightness() -> None:
    light = (glimpse_colors(7) @ [0.3, 0.59, 0.11]).tolist()
    assert light == sorted(light)
    assert len(set(light)) == 7
    assert len(glimpse_colors(1)) == 1


def test_windows_and_numbers_lie_where_the_model_looked() -> None:
    scan = miniature_scan((60, 90), glimpses=4)
    ax = Figure().add_subplot()
    draw_scan_path(ax, photo_of(scan), scan)
    boxes, windows = scan.boxes.numpy(), [*ax.patches]
    outlined = [each.get_bbox().extents for each in windows if isinstance(each, Rectangle)]
    assert len(outlined) == len(windows)
    np.testing.assert_allclose(outlined, [*boxes[-1, 1:], *boxes[:, 0]])  # coarse ones: the last
    numbers = {text.get_text(): text.get_position() for text in ax.texts}
    assert [*numbers] == ["1", "2", "3", "4"]
    for (x, y), box in zip(numbers.values(), boxes[:, 0], strict=True):
        assert not (box[0] + 3 < x < box[2] and box[1] + 3 < y < box[3])  # it hides nothing
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left <= 0 < 90 <= right  # the photo, and what of the windows lies beside it
    assert top <= 0 < 60 <= bottom


def test_brightness_follows_the_finest_scale() -> None:
    gray = np.full((60, 90, 3), 200, np.uint8)
    boxes = np.array(
        [[[30.0, 20, 46, 36], [22, 12, 54, 44]], [[40.0, 20, 56, 36], [32, 12, 64, 44]]]
    )
    drawn = _dim_outside(gray, boxes)[..., 0]
    assert drawn[28, 34] == drawn[28, 50] == 200  # finest, also under a later wide window
    assert drawn[40, 60] == 150  # in a wide window only
    assert drawn[57, 10] == 100  # never


@pytest.mark.parametrize("count", [2, 6, 20])
def test_numbers_at_the_same_location_do_not_overlap(count: int) -> None:
    moved = _separate_points(np.full((count, 2), 7.0), 2.0)
    gaps = np.linalg.norm(moved[:, None] - moved, axis=-1) + 9 * np.eye(count)
    assert gaps.min() > 1.8


def test_finer_and_later_glimpses_take_precedence() -> None:
    patches = np.zeros((2, 2, 1, 2, 2), np.uint8)
    patches[0, 0], patches[0, 1], patches[1, 1] = 210, 110, 120
    patches[1, 0] = [[220, 221], [222, 223]]
    boxes = np.array([[[0.0, 0, 4, 4], [0, 0, 8, 8]], [[2.0, 0, 6, 4], [0, 0, 8, 8]]])
    drawn = glimpse_mosaic(patches, boxes, (8, 8))[..., 0]
    assert drawn[1].tolist() == [210, 210, 220, 220, 221, 221, 120, 120]
    assert drawn[3].tolist() == [210, 210, 222, 222, 223, 223, 120, 120]
    assert (drawn[4:] == 120).all()


def test_fractional_and_far_boxes_cover_pixels_with_centers_inside() -> None:
    white = np.full((1, 1, 1, 3, 3), 255, np.uint8)
    drawn = glimpse_mosaic(white, np.array([[[1.6, 0.4, 4.5, 2.5]]]), (4, 6))[..., 0] == 255
    assert np.argwhere(drawn).tolist() == [[y, x] for y in (0, 1) for x in (2, 3)]
    assert (glimpse_mosaic(white, np.array([[[-90.0, 0, -80, 10]]]), (9, 9)) < 60).all()


def test_predictions_are_plotted_before_their_rivals() -> None:
    probabilities = np.array([[0.05, 0.6, 0.3, 0.05], [0.5, 0.0, 0.1, 0.4]])
    assert top_classes(probabilities) == [0, 3, 2, 1]
    assert top_classes(probabilities, max_classes=3) == [0, 3, 1]  # 1 was likely once, 2 less
    assert len(top_classes(np.full((3, 1000), 0.001))) == 5
    read = np.eye(7)[[3, 3, 0, 0, 6, 6, 1, 1, 5, 5, 2, 2]]
    assert top_classes(read, glimpses_per_label=2) == [3, 0, 6, 1, 5, 2]


def test_lines_are_at_their_probabilities() -> None:
    scan = sequence_scan([1, 0])
    ax = Figure().add_subplot()
    draw_probabilities(ax, scan)
    first = scan.probabilities[:, 1].numpy()  # of dog, interrupted between the labels
    shown = [np.asarray(line.get_ydata()) for line in ax.lines[:2]]
    np.testing.assert_allclose(shown, first.reshape(2, 2))
    assert list(ax.lines[-1].get_xdata()) == [2.5, 2.5]  # pyright: ignore[reportArgumentType]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][:2] == ["dog", "cat"]


def sequence_scan(classes: list[int], *, glimpses_per_label: int = 2) -> ScanPath:
    """Return a scan that reads these classes, of CLASSES with cow as the end."""
    count = len(classes) * glimpses_per_label
    scan = miniature_scan((300, 400), glimpses=count, scales=1)
    probabilities = np.full((count, len(CLASSES)), 0.01)
    for label, index in enumerate(classes):
        probabilities[(label + 1) * glimpses_per_label - 1, index] = 0.94
    return replace(
        scan,
        probabilities=torch.from_numpy(probabilities),
        glimpses_per_label=glimpses_per_label,
        end_class="cow",
    )


def test_labels_are_read_in_order_up_to_the_end_and_written_where_they_are_read() -> None:
    scan = sequence_scan([1, 0, 5, 2])  # dog, cat, the end, and what comes after it
    assert [(label.name, label.glimpse) for label in scan.labels] == [
        ("dog", 1), ("cat", 3), ("cow", 5),
    ]  # fmt: skip
    assert (scan.prediction, scan.probability) == ("dog cat", pytest.approx(0.94**3))
    assert sequence_scan([5, 1]).prediction == "cow"
    assert miniature_scan().tags == {}
    ax = Figure().add_subplot()
    draw_scan_path(ax, photo_of(scan), scan)
    assert [text.get_text() for text in ax.texts] == [*"123456", "dog", "cat", "cow"]


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize(("glimpses", "scales", "channels"), [(1, 1, 1), (12, 4, 1), (30, 1, 3)])
def test_everything_lies_on_the_page(
    size: tuple[int, int], glimpses: int, scales: int, channels: int
) -> None:
    scan = miniature_scan(size, glimpses=glimpses, scales=scales, channels=channels)
    drawn = rgb(glimpse_figure(photo_of(scan), scan), 700)
    for edge in (drawn[:2], drawn[-2:], drawn[:, :2], drawn[:, -2:]):
        assert (edge == 255).all()


def test_a_figure_shows_path_mosaic_probabilities_and_each_glimpse_in_order() -> None:
    scan = miniature_scan(glimpses=4, scales=2)
    figure = glimpse_figure(photo_of(scan), scan)
    *_, strip = figure.axes
    shown = [np.asarray(each.get_array()) for each in strip.images]
    patches = scan.patches.numpy().transpose(0, 1, 3, 4, 2).reshape(8, 5, 5, 3)
    np.testing.assert_array_equal(shown, patches)
    assert {"×1", "×2", f"sheep, {format_percent(scan.probability)}"} <= {*texts(figure)}
    spots = [(text.get_position(), text.get_text()) for text in strip.texts]
    for (x, y), text in spots:  # beside the patches, within the axes
        assert 0 <= x <= strip.get_xlim()[1], text
        assert 0 <= y <= strip.get_ylim()[0], text
        for left, right, bottom, top in (image.get_extent() for image in strip.images):
            assert not (left <= x < right and top < y < bottom), text
    assert not any("seed" in text for text in texts(figure))
    sampled = replace(scan, info=replace(scan.info, policy="sampled"))
    assert any(
        "sampled policy, seed 0" in each for each in texts(glimpse_figure(photo_of(scan), sampled))
    )
    assert glimpse_overlay(photo_of(scan), scan, max_side=260).shape[1] == 260
    with pytest.raises(ValueError, match="from a record without patches"):
        glimpse_figure(
            photo_of(scan), replace(scan, patches=scan.patches[:, :, :0], pixels=scan.pixels[:0])
        )
    with pytest.raises(ValueError, match="the scan path belongs to an image of"):
        glimpse_figure(np.zeros((9, 9, 3), np.uint8), scan)


def test_coverage_is_the_mean_over_images() -> None:
    coverage, scans = Coverage(), [miniature_scan(seed=seed) for seed in (3, 4)]
    for scan in scans:
        coverage.add(scan)
    figure = coverage.figure()
    titles = [ax.get_title(loc="left") for ax in figure.axes][:5]
    assert titles == ["mean path ± 1 std", "all glimpses", "glimpse 1", "glimpse 2", "glimpse 3"]
    assert len(figure.axes[0].patches) == 3
    mean = torch.stack([scan.maps.values[0] for scan in scans]).mean(0).numpy()
    seen, unseen = (tuple(np.argwhere(mean == end)[0][::-1] + 0.5) for end in (mean.max(), 0))
    bright, quiet = colors(figure, figure.axes[2], [seen, unseen]).sum(1)
    assert bright != quiet
