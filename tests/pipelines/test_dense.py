"""Explanations of dense models on photos: maps lie on the marked thing, by every method."""

from typing import Any

import numpy as np
import pytest
import torch
from dense_models import CLASSES, BlobDetector, QueryDetector, Segmenter

import visattn as va
from visattn.attribution.dense_targets import mask_to_runs
from visattn.results.info import MapInfo, Thing
from visattn.viz.maps import draw_target

BOX = (120, 40, 144, 64)  # on a photo of 120 x 200


def photo(box: tuple[int, int, int, int] = BOX, size: tuple[int, int] = (120, 200)) -> Any:
    pixels = np.random.default_rng(0).integers(0, 40, (*size, 3), np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 255
    return pixels


def share_inside(heatmap: va.AttentionMap, box: Any, margin: int = 0) -> float:
    """Share of the map within a box; the map must be seen everywhere on the photo."""
    values = heatmap.resize_to_image().clamp(min=0)
    assert not bool(values.isnan().any())
    left, top, right, bottom = (
        round(side) + sign * margin for side, sign in zip(box, (-1, -1, 1, 1), strict=True)
    )
    return float(values[max(top, 0) : bottom, max(left, 0) : right].sum() / values.sum())


@pytest.mark.parametrize("level", ["0", "1"])
def test_pyramid_maps_of_a_detector_that_resizes_and_pads_lie_right(level: str) -> None:
    detector = BlobDetector(level).eval()
    [heatmap] = va.explain(detector, photo(), "layercam", va.BoxTarget(None, 2))
    assert heatmap.geometry is not None
    assert heatmap.geometry.input_size == (160, 288)  # 267 columns of it are the image
    assert tuple(heatmap.values.shape) == (20, 36)
    box = heatmap.info.thing.box
    assert BOX[0] - 13 <= box[0] <= box[2] <= BOX[2] + 13
    assert share_inside(heatmap, box, margin=8) > 0.99
    [gradient] = va.explain(detector, photo(), "input_gradient", va.BoxTarget(None, 2))
    assert share_inside(gradient, box, margin=2) > 0.99


def test_a_pixel_is_explained_by_its_surroundings_only() -> None:
    for method in ("layercam", "input_gradient"):
        [heatmap] = va.explain(
            Segmenter(upsample=True).eval(),
            photo(),
            method,
            va.PixelTarget("cat", x=132, y=52),
            class_names=CLASSES,
            input_size=(96, 160),
        )
        assert (heatmap.info.thing.kind, heatmap.info.thing.point) == ("pixel", (132, 52))
        assert heatmap.info.class_name == "cat"
        assert share_inside(heatmap, (132, 52, 133, 53), margin=12) > 0.99


def test_each_photo_has_its_target_and_its_size() -> None:
    photos = [photo(), photo((10, 10, 40, 40), (64, 80))]
    targets = [va.BoxTarget(BOX, 2), va.BoxTarget((8, 8, 42, 42), 2)]
    of_photos = va.explain(
        BlobDetector().eval(), photos, "layercam", [[target] for target in targets]
    )
    maps = [heatmap for [heatmap] in of_photos]
    assert [heatmap.geometry.image_size for heatmap in maps if heatmap.geometry] == [
        (120, 200), (64, 80),
    ]  # fmt: skip
    boxes = [heatmap.info.thing.box for heatmap in maps]
    assert boxes == [tuple(map(float, target.box or ())) for target in targets]


def test_queries_read_the_quarter_that_they_detect() -> None:
    for query, box in enumerate(((0, 0, 100, 60), (100, 0, 200, 60), (0, 60, 100, 120))):
        [heatmap] = va.explain(
            QueryDetector().eval(), photo(), "input_gradient", va.QueryTarget(query, "cat"),
            class_names=CLASSES, input_size=(120, 200),
        )  # fmt: skip
        assert heatmap.info.thing.box == pytest.approx(box, abs=1e-3)
        assert share_inside(heatmap, box) > 0.999


def test_a_region_is_drawn_where_it_lies_on_the_input_wherever_cells_lie() -> None:
    mask = torch.zeros(24, 40, dtype=torch.bool)
    mask[6:18, 10:30] = True
    grid, runs = mask_to_runs(mask)
    info = MapInfo(thing=Thing("region", grid=grid, runs=runs))
    place = va.Geometry.identity((24, 40))
    pair = [
        va.AttentionMap(torch.eye(2), "x", "gradient", place.inset(margin), info, (), margin)
        for margin in ((0, 0), (5, 9))
    ]
    edges, moved = (draw_target(np.zeros((24, 40, 3), np.uint8), heatmap) for heatmap in pair)
    assert edges.any()
    np.testing.assert_array_equal(moved, edges)
