"""Figures of captions, alignments, detections, segmentations, answers, statistics and crops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from figure_texts import colors, texts
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from page_results import caption_of

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.results.map_boxes import MapBox, MapBoxes
from visattn.results.values import Answer, DetectedObject, Detections, Segmentation
from visattn.viz.answers import answer_figure
from visattn.viz.captions import caption_figure, draw_alignment
from visattn.viz.crops import crop_figure
from visattn.viz.detections import box_color, detection_figure, detection_overlay, draw_boxes
from visattn.viz.figures import FAINT, SECOND, rgb
from visattn.viz.heatmap import overlay
from visattn.viz.segmentation import (
    class_color,
    draw_errors,
    draw_labels,
    outlines,
    segmentation_figure,
)

RNG = np.random.default_rng(2)
SIZE = (60, 90)
PLACE = Geometry.identity(SIZE)
PHOTO = np.full((*SIZE, 3), 128, np.uint8)


# ---------------------------------------------------------------- captions


def test_words_share_a_scale() -> None:
    maps = np.stack([np.full(SIZE, value) for value in (0.1, 0.2, 0.4)])
    figure = caption_figure(PHOTO, caption_of(("a", "red", "dog"), maps, SIZE))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["", "a", "red", "dog", ""]
    for ax, value in zip(figure.axes[1:], (0.1, 0.2, 0.4), strict=False):
        # the end is the peak of the middle word
        expected = overlay(PHOTO[:1, :1], np.full((1, 1), value), vmax=0.2)[0]
        np.testing.assert_allclose(colors(figure, ax, [(45.0, 30.0)]), expected, atol=2)
    assert "≥ 0.2" in texts(figure)
    greatest = caption_figure(PHOTO, caption_of(("a", "b"), maps[1:], SIZE), scales="greatest")
    assert {"0.4", "attention"} <= {*texts(greatest)}
    own = texts(caption_figure(PHOTO, caption_of(("a", "b"), maps[:2], SIZE), scales="own"))
    assert {"0.1", "0.2"} <= {*own}


def test_words_have_their_probabilities_and_gates() -> None:
    maps, gates = RNG.random((3, 3, 4)), (0.0, 0.25, 0.5)
    for scales in ("shared", "own"):
        said = caption_of(("a", "red", "dog"), maps, SIZE, (-0.1, -0.2, -0.3), gates)
        figure = caption_figure(PHOTO, said, scales=scales)
        assert [ax.get_title(loc="right") for ax in figure.axes[1:4]] == ["90 %", "82 %", "74 %"]
        assert {"β 0.00", "β 0.25", "β 0.50"} <= {*texts(figure)}
        for ax, gate in zip(figure.axes[1:4], gates, strict=True):
            track, bar = ax.patches
            assert isinstance(track, Rectangle)
            assert isinstance(bar, Rectangle)
            assert bar.get_width() == pytest.approx(gate * track.get_width())
            assert (track.get_facecolor(), bar.get_facecolor()) == (hex_of(FAINT), hex_of(SECOND))


def hex_of(color: str) -> tuple[float, ...]:
    from matplotlib.colors import to_rgba

    return to_rgba(color)


def test_captions_without_words_and_maps_without_values_are_drawn() -> None:
    none = caption_of((), np.zeros((0, 2, 2)), SIZE)
    assert "(no words)" in texts(caption_figure(PHOTO, none))
    for value in (0.0, np.nan):
        rgb(caption_figure(PHOTO, caption_of(("a",), np.full((1, 3, 4), value), SIZE)))


@pytest.mark.parametrize("size", [(97, 131), (40, 1600), (1600, 40), (1, 1)])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_everything_lies_on_the_page(size: tuple[int, int], count: int) -> None:
    said = caption_of(("incomprehensibilities",) * count, RNG.random((count, 3, 4)), size,
                      (-0.5,) * count, (0.5,) * count)  # fmt: skip
    photo = np.zeros((*size, 3), np.uint8)
    drawn = rgb(caption_figure(photo, said), 500)
    for edge in (drawn[:2], drawn[-2:], drawn[:, :2], drawn[:, -2:]):
        assert (edge == 255).all()


# ---------------------------------------------------------------- alignments

# A photo of 60 × 90 in a network of 4 × 5 cells: where column 3 lies on the photo.
GEOMETRIES = {
    "squash": (PLACE.resized((32, 40)), (54, 72)),
    "crop": (PLACE.cropped(0, 10, (60, 75)).resized((32, 40)), (10 + 45, 10 + 60)),
    "mirror": (PLACE.resized((32, 40)).flipped(), (18, 36)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_cells_lie_below_the_columns_of_the_photo_that_they_cover(name: str) -> None:
    geometry, (left, right) = GEOMETRIES[name]
    values = torch.zeros(2, 4, 5)
    values[0, :, 3] = 0.25
    values[1, 1, 3] = 1  # the sum over the rows counts
    maps = AttentionMap(values, "attend", "words", geometry)
    figure = Figure((4, 4), dpi=200)
    ax = figure.add_axes((0.2, 0, 0.7, 1))
    draw_alignment(ax, PHOTO, Caption(("0", "1"), (), (), maps, 0.0, finished=True))
    for text in ax.texts:  # each word beside its row
        y = text.get_position()[1]
        inside, *outside = colors(
            figure, ax, [((left + right) / 2, y), (left - 1.5, y), (right + 1.5, y)]
        ).sum(1)
        assert inside > 600
        assert max(outside) < 400
    photo = colors(figure, ax, [(85.0, 5.0)])
    np.testing.assert_array_equal(photo, [[128] * 3])


def test_outlines_lie_around_the_peaks() -> None:
    values = torch.full((2, 6, 9), 1e-3)
    values[0, 2, 2], values[1, 4, 7] = 0.5, 0.5
    maps = AttentionMap(values, "attend", "words", PLACE)
    ax = Figure().add_subplot()
    draw_alignment(ax, PHOTO, Caption(("a", "b"), (), (), maps, 0.0, finished=True))
    for lines, (x, y) in zip(ax.collections, ((25, 25), (75, 45)), strict=True):
        middle = np.concatenate([path.vertices for path in lines.get_paths()]).mean(0)
        np.testing.assert_allclose(middle, (x, y), atol=2)


# ---------------------------------------------------------------- detections


def detections(count: int = 2, labels: str = "cd") -> Detections:
    box = (10.0, 20.0, 50.0, 40.0)
    objects = tuple(DetectedObject(label, 0.9, box, 3) for label in labels[:count])
    values = torch.linspace(0.1, 0.9, 6 * count).view(count, 2, 3)
    note = MapInfo(layer=5, outside=[0.0, 0.25][:count])
    return Detections(objects, AttentionMap(values, "decoder", "queries", PLACE, note))


def test_the_overview_has_the_size_of_the_photo_and_its_boxes() -> None:
    for size in (SIZE, (333, 517)):
        photo = np.zeros((*size, 3), np.uint8)
        own = detections(1)
        own = replace(own, maps=own.maps.with_geometry(Geometry.identity(size)))
        drawn = detection_overlay(photo, own)
        assert drawn.shape == photo.shape
        at = np.argwhere(np.abs(drawn.astype(int) - box_color(0)).max(2) < 30)
        assert (at.min(0)[1], at.max(0)[0]) == pytest.approx((10, 40), abs=3)
    with pytest.raises(ValueError, match="the detection belongs to an image of"):
        detection_overlay(PHOTO[:9], detections())


def test_each_query_has_its_map_and_box_on_one_range() -> None:
    figure = detection_figure(PHOTO, detections())
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["2 objects", "c 0.90", "d 0.90", ""]
    assert [len(ax.patches) for ax in figure.axes[:3]] == [2, 1, 1]
    assert {"query 3", "query 3, 25 % outside the input"} <= {*texts(figure)}
    assert "cross-attention of decoder layer 5, mean over heads" in texts(figure)
    first = detection_figure(PHOTO, detections(), max_queries=1)
    assert first.axes[0].get_title(loc="left") == "2 objects, queries of the first 1"
    assert len(detection_figure(PHOTO, detections(0)).axes) == 1


def test_labels_stay_on_the_photo_and_do_not_overlap() -> None:
    objects = [
        DetectedObject("a dog", 0.9, (100.0 + 3 * number, 100.0, 220.0, 180.0), number)
        for number in range(5)
    ]
    corner = DetectedObject("a very long label of a class", 0.9, (380.0, 0.0, 400.0, 20.0), 9)
    figure = Figure((4, 3), dpi=100)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 400), ylim=(300, 0))
    draw_boxes(ax, [*objects, corner])
    figure.canvas.draw()
    plates = [text.get_window_extent().padded(1.2 * 100 / 72) for text in ax.texts]
    assert len(plates) >= 3
    for index, plate in enumerate(plates):
        assert plate.x0 > -2
        assert plate.x1 < 402
        assert not plate.count_overlaps([p.padded(-1) for p in plates[index + 1 :]])


# ---------------------------------------------------------------- segmentations


def test_colors_of_the_first_classes_differ() -> None:
    shades = np.array([class_color(number) for number in range(24)]).astype(int)
    distances = np.abs(shades[:, None] - shades[None]).sum(-1) + 999 * np.eye(24, dtype=int)
    assert distances.min() > 30


def test_labels_are_drawn_where_they_are() -> None:
    image, labels = np.full((20, 30, 3), 100, np.uint8), np.zeros((20, 30), np.uint8)
    labels[5:15, 20:28] = 2
    labels[0, :] = 255
    drawn = draw_labels(image, labels, opacity=0.5)
    middle = np.rint(0.5 * 100 + 0.5 * np.array(class_color(2)))
    assert (np.abs(drawn[6:14, 21:27] - middle) <= 1).all()
    assert (drawn[5, 20:28] == class_color(2)).all()  # the outline
    assert (drawn[1:4, 1:19] == 75).all()  # dimmed background
    assert (drawn[0] == 125).all()  # halfway to gray
    assert (draw_labels(image, labels * 0, opacity=1.0, background=False) == class_color(1)).all()
    edge = outlines(np.pad(np.ones((5, 5), int), 2))
    assert edge.sum() == 16  # one pixel wide, inside
    assert not edge[3:6, 3:6].any()


def test_errors_are_red_where_prediction_and_truth_differ() -> None:
    truth, labels = np.zeros((20, 30), int), np.zeros((20, 30), int)
    truth[3:5], labels[4:6] = 1, 1
    truth[10] = 255
    drawn = draw_errors(np.full((20, 30, 3), 100, np.uint8), truth, labels)
    red = (drawn == (214, 40, 40)).all(-1)
    assert red[[3, 5]].all()
    assert red.sum() == 60
    assert (drawn[10] == 150).all()


def test_a_segmentation_has_its_tiles_classes_and_gates_from_0_to_1() -> None:
    labels = np.zeros(SIZE, np.uint8)
    labels[20:40, 30:60], labels[:3] = 2, 255
    gate = AttentionMap(torch.full((2, 3), 0.999), "gate", "gate", PLACE)
    result = Segmentation(labels, ("background", "cat", "dog"), (gate, gate), PLACE)
    figure = segmentation_figure(PHOTO, result, np.roll(labels, 3, 1))
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[:4] == ["image", "truth", "prediction", "errors 2.3 %"]
    assert titles[4:6] == ["gate 2 × 3"] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "background", "dog", "not counted",
    ]  # fmt: skip
    assert {"0", "0.5", "1", "mean 1.00"} <= {*texts(figure)}
    drawn = draw_labels(PHOTO, labels)[30, 45]
    np.testing.assert_allclose(colors(figure, figure.axes[2], [(45.5, 30.5)]), [drawn], atol=2)


# ---------------------------------------------------------------- answers, statistics, crops


def test_questions_are_rows_with_their_answers_and_hops() -> None:
    maps = AttentionMap(torch.tensor([[[0.0, 0.1]], [[0.0, 0.4]]]), "hop", "tokens", PLACE,
                        labels=("first", "second"))  # fmt: skip
    answers = [Answer("Red?", ("red",), (("yes", 0.9), ("no", 0.1)), maps),
               Answer("Big?", ("big",), (("no", 0.7),), None)]  # fmt: skip
    boxes = MapBoxes((MapBox((5.0, 5.0, 25.0, 25.0), 1.0, 1.0),), 0.5, SIZE)
    figure = answer_figure(PHOTO, answers, note="correct: yes")
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["", "first", "second", "", "", ""]
    written = texts(figure)
    assert {"Red?", "yes (90 %), no (10 %) · correct: yes", "Big?"} <= {*written}
    assert {"0", "0.4", "this model has no attention maps"} <= {*written}
    one = answer_figure(PHOTO, [replace(answers[0], maps=maps[:1])], boxes=[boxes])
    assert len(one.axes[1].patches) == 1


def test_crops_lie_below_the_photo_with_their_outline() -> None:
    turned = np.array([[30.0, 8.0], [52.0, 30.0], [30.0, 52.0], [8.0, 30.0]])
    photos = np.stack([PHOTO] * 9)
    figure = crop_figure(photos, np.stack([turned] * 9), 255 - photos[:, :20])
    assert len(figure.axes) == 18
    outline = figure.axes[0].patches[0]
    assert isinstance(outline, Polygon)
    np.testing.assert_array_equal(outline.get_xy()[:4], turned)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(), turned[:1])
    below = figure.axes[8]
    np.testing.assert_array_equal(colors(figure, below, [(40.0, 10.0)]), [[127] * 3])
    assert below.get_position().y1 < figure.axes[0].get_position().y0
