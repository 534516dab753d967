"""`va.figure`: methods and classes by photos."""

from typing import Any

import numpy as np
import pytest
import torch
from figure_texts import texts

import visattn as va
from visattn.geometry import Geometry
from visattn.results import AttentionMap
from visattn.results.info import MapInfo

SIZES = ((60, 80), (90, 60))
PHOTOS = [np.full((*size, 3), 40 + 100 * n, np.uint8) for n, size in enumerate(SIZES)]


def placed(top: float = 1.0, photo: int = 0, method: str = "gradcam", **info: Any) -> AttentionMap:
    values = torch.tensor([[0.0, top], [top / 2, 0.0]])
    geometry = Geometry.identity(SIZES[photo])
    return AttentionMap(values, "x", "gradient", geometry, MapInfo(method, **info))


def methods_by_photos() -> list[list[AttentionMap]]:
    return [[placed(1.0 + n, n, method, class_name=name) for method in ("gradcam", "layercam")]
            for n, name in enumerate(("cat", "dog"))]  # fmt: skip


def test_columns_are_titled_by_methods_and_rows_by_their_class() -> None:
    written = texts(va.figure(methods_by_photos(), PHOTOS, width=700))
    assert written.count("Grad-CAM") == written.count("LayerCAM") == 1
    assert written.count("cat") == written.count("dog") == 1  # below their photo
    assert written.count("0 to 1") == written.count("0 to 2") == 2


def test_columns_of_one_method_are_titled_by_classes() -> None:
    rows = [[placed(1.0, n, class_name=name) for name in ("cat", "dog")] for n in (0, 1)]
    written = texts(va.figure(rows, PHOTOS, width=700))
    assert {"Grad-CAM", "cat", "dog"} <= {*written}


def test_a_dictionary_has_a_column_for_each_key() -> None:
    columns = {"before": [placed(1, 0), placed(1, 1)], "after": [placed(2, 0), placed(2, 1)]}
    written = texts(va.figure(columns, PHOTOS, width=700, title="training"))
    assert {"training", "before", "after"} <= {*written}
    swapped = [{"before": placed(1, n), "after": placed(2, n)} for n in (0, 1)]
    assert texts(va.figure(swapped, PHOTOS, width=700, title="training")) == written


def test_an_empty_map_has_a_reason_and_no_range() -> None:
    empty = placed(0.0, empty="the map is zero everywhere")
    written = texts(va.figure([[empty, placed(2.0)], [placed(4.0, 1), placed(8.0, 1)]], PHOTOS))
    assert "the map is zero everywhere" in written
    assert [each for each in written if " to " in each] == ["0 to 2", "0 to 4", "0 to 8"]


def test_maps_on_one_scale_have_one_legend_with_its_values() -> None:
    written = texts(va.figure(methods_by_photos(), PHOTOS, scales="all", width=700))
    assert "2" in written
    assert not [each for each in written if " to " in each]
    rows = texts(va.figure(methods_by_photos(), PHOTOS, scales="row", width=700))
    assert rows.count("0 to 1") == rows.count("0 to 2") == 2
    columns = texts(va.figure(methods_by_photos(), PHOTOS, scales="column", width=700))
    assert "0 to 1" not in columns


def test_each_row_shows_its_photo_at_its_own_shape() -> None:
    page = np.asarray(va.figure(methods_by_photos(), PHOTOS, width=700).image)
    rows = [np.argwhere((page == photo[0, 0]).all(2)) for photo in PHOTOS]
    (top, bottom), shapes = rows, [np.ptp(each, axis=0) + 1 for each in rows]
    assert top[:, 0].max() < bottom[:, 0].min()
    for shape, size in zip(shapes, SIZES, strict=True):
        assert shape[0] / shape[1] == pytest.approx(size[0] / size[1], rel=0.02)


def test_maps_without_photos_are_drawn_on_gray() -> None:
    alone = AttentionMap(torch.eye(3), "x", "gradient")
    page = np.asarray(va.figure(alone, width=600).image)
    assert not [text for text in texts(va.figure(alone, width=600)) if text == "Image"]
    assert page.shape[1] == 600
    words = AttentionMap(torch.rand(3, 2, 2), "x", "words", labels=("a", "red", "ring"))
    assert {"a", "red", "ring"} <= {*texts(va.figure(words, width=600))}


def test_an_empty_map_shows_its_reason() -> None:
    rows = methods_by_photos()
    rows[1][0] = AttentionMap(torch.zeros(2, 2), "x", "gradient", Geometry.identity(SIZES[1]),
                              MapInfo("gradcam", empty="the gradient is zero"))  # fmt: skip
    written = " ".join(texts(va.figure(rows, PHOTOS, width=700)))
    assert "the gradient is zero" in written


def test_boxes_are_outlined_on_the_tile_of_their_map() -> None:
    maps, photo, (height, width) = [placed(), placed(method="layercam")], PHOTOS[0], SIZES[0]
    box = (width / 4, height / 4, width * 3 / 4, height / 2)
    plain, outlined = (np.asarray(va.figure(maps, photo, boxes=boxes).image)
                       for boxes in ((), [[], [box]]))  # fmt: skip
    rows, columns = np.nonzero((plain != outlined).any(2))
    assert columns.min() > 1200 / 2  # the photo, the first map, the second map
    shape = (np.ptp(rows) + 1, np.ptp(columns) + 1)
    assert shape[1] / shape[0] == pytest.approx(2 * width / height, rel=0.1)
    with pytest.raises(ValueError, match="each of 2 maps needs boxes, got 1"):
        va.figure(maps, photo, boxes=[[box]])


@pytest.mark.parametrize(
    ("maps", "images", "message"),
    [
        (list, None, "a figure needs maps"),
        (lambda: methods_by_photos(), PHOTOS[:1], "got 2 rows and 1 photos"),
        (lambda: [[placed()], [placed(), placed()]], None, "equally many maps, got 1, 2"),
        (lambda: {"a": [placed()], "b": [placed(), placed()]}, None, "for each photo, got 1, 2"),
        (lambda: [placed(photo=1)], PHOTOS[0], "image"),
        (lambda: ["a"], None, "a figure draws maps"),
    ],
)
def test_maps_and_photos_that_do_not_fit_are_refused(maps: Any, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        va.figure(maps(), images)


def test_figures_that_no_page_holds_are_refused() -> None:
    wide = [[placed(photo=n) for _ in range(20)] for n in (0, 1)]
    with pytest.raises(ValueError, match="must be at least 1320 pixels wide, got 600"):
        va.figure(wide, PHOTOS, width=600)
    with pytest.raises(ValueError, match="scales must be one of map, row, column, all"):
        va.figure([placed()], PHOTOS[0], scales="photo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="each of 1 maps needs a scale, got 0"):
        va.figure([placed()], PHOTOS[0], scales=[])
