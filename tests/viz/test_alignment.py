"""Alignment matrix: its cells lie below the columns of the photo that they belong to."""

from typing import Any

import numpy as np
import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.info import MapInfo
from visattn.viz.alignment import alignment_figure, alignment_image_size, alignment_panel
from visattn.viz.canvas import BACKGROUND
from visattn.viz.heatmap import resize_image
from visattn.viz.tiles import MARGIN, title_bottom

LEFT = MARGIN + 140  # of the photo and of the matrix
PHOTO = np.random.default_rng(1).integers(0, 256, (60, 100, 3), dtype=np.uint8)


def caption(values: torch.Tensor, geometry: Geometry, **info: Any) -> Caption:
    words = tuple(str(number) for number in range(len(values)))
    zeros = (0.0,) * len(values)
    maps = AttentionMap(values, "attend", "words", geometry, MapInfo(**info), words)
    return Caption(words, zeros, (1.0,) * len(values), maps, 0.0, finished=True)


def matrix_rows(
    figure: np.ndarray, count: int, photo: np.ndarray = PHOTO, subtitle: str = ""
) -> list[np.ndarray]:
    """Return the middle line of each row of the matrix, over the width of the photo."""
    height, width = alignment_image_size((photo.shape[0], photo.shape[1]), width=figure.shape[1])
    top = title_bottom("0 1 2", figure.shape[1], subtitle=subtitle) + height + 10 + 15
    return [figure[top + 32 * index, LEFT : LEFT + width].astype(int) for index in range(count)]


def bright_part(row: np.ndarray, photo_width: int = 100) -> tuple[float, float]:
    """Return the first and last bright pixel of a row, in pixels of the photo."""
    (bright,) = np.nonzero(row.sum(-1) > 600)
    assert (np.diff(bright) == 1).all()
    return bright[0] * photo_width / len(row), (bright[-1] + 1) * photo_width / len(row)


IDENTITY = Geometry.identity((60, 100))
# A photo of 60 × 100 in a network of 4 × 5 cells: where column 3 lies on the photo.
GEOMETRIES = {
    "squash": (IDENTITY.resized((32, 40)), (60, 80)),
    "crop": (IDENTITY.cropped(0, 10, (60, 75)).resized((32, 40)), (10 + 45, 10 + 60)),
    "mirror": (IDENTITY.resized((32, 40)).flipped(), (20, 40)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_cells_lie_below_the_columns_of_the_photo_that_they_cover(name: str) -> None:
    geometry, (left, right) = GEOMETRIES[name]
    values = torch.zeros(3, 4, 5)
    values[0, :, 3] = 0.25
    values[1, 1, 3] = 1  # the sum over the rows counts
    values[2, :, 0] = 0.25
    figure = np.asarray(alignment_figure(PHOTO, caption(values, geometry), width=1000).image)
    rows = matrix_rows(figure, 3, subtitle=geometry.seen_text)
    pixel = 100 / len(rows[0])
    for row in rows[:2]:
        assert bright_part(row) == pytest.approx((left, right), abs=pixel)
    assert bright_part(rows[2]) != pytest.approx((left, right), abs=pixel)
    if name == "crop":  # what the model did not see is hatched, neither black nor bright
        unseen = np.concatenate([rows[0][: int(10 / pixel) - 1], rows[0][int(85 / pixel) + 2 :]])
        assert set(unseen.ravel().tolist()) == {71, 111}
        top = title_bottom("0 1 2", 1000, subtitle=geometry.seen_text)
        assert figure[top + 5, LEFT : LEFT + int(10 / pixel) - 1].max() < 160 < PHOTO.max()


def test_the_photo_stands_above_the_matrix_at_the_same_scale() -> None:
    size = alignment_image_size((60, 100), width=900)
    figure = np.asarray(
        alignment_panel(PHOTO, ["0", "1", "2"], np.zeros((3, size[1])), width=900).paint()
    )
    top = title_bottom("0 1 2", 900)
    drawn = figure[top : top + size[0], LEFT : LEFT + size[1]]
    np.testing.assert_array_equal(drawn, resize_image(PHOTO, size))
    rows = matrix_rows(figure, 3)
    assert all((row == rows[0][0]).all() for row in rows)  # no attention: gray
    assert rows[0].max() < 100
    assert (figure[top, LEFT - 1] == BACKGROUND).all()
    assert (figure[top + size[0] + 12, LEFT - 1] == BACKGROUND).all()
    assert (figure[top + size[0] + 12, LEFT + size[1]] == BACKGROUND).all()


def test_outlines_lie_around_the_peaks() -> None:
    values = torch.full((2, 6, 10), 1e-3)
    values[0, 2, 2], values[1, 4, 7] = 0.5, 0.5
    photo = np.full((60, 100, 3), 128, np.uint8)
    size = alignment_image_size((60, 100), width=900)
    plain = np.asarray(
        alignment_figure(photo, caption(torch.full((2, 6, 10), 1 / 60), IDENTITY), width=900).image
    )
    top = title_bottom("0 1", 900)
    drawn = np.asarray(alignment_figure(photo, caption(values, IDENTITY), width=900).image)
    area = (slice(top, top + size[0]), slice(LEFT, LEFT + size[1]))
    y, x = np.nonzero(np.abs(drawn[area].astype(int) - plain[area]).sum(-1) > 90)
    left = x < size[1] / 2
    assert (y[left].mean() / size[0], x[left].mean() / size[1]) == pytest.approx(
        (0.417, 0.25), abs=0.02
    )
    assert (y[~left].mean() / size[0], x[~left].mean() / size[1]) == pytest.approx(
        (0.75, 0.75), abs=0.02
    )


def test_the_place_of_hard_attention_is_outlined_as_a_cell() -> None:
    values = torch.zeros(1, 6, 10)
    values[0, 2, 3] = 1
    photo = np.full((60, 100, 3), 128, np.uint8)
    size = alignment_image_size((60, 100), width=900)
    top = title_bottom("0", 900)
    hard = caption(values, IDENTITY, places="argmax")
    drawn = np.asarray(alignment_figure(photo, hard, width=900).image)
    shown = drawn[top : top + size[0], LEFT : LEFT + size[1]].astype(int)
    y, x = np.nonzero(np.ptp(shown, axis=-1) > 30)  # colored
    cell = size[1] / 10
    assert (x.min(), x.max()) == pytest.approx((3 * cell, 4 * cell), abs=2)
    assert (y.min(), y.max()) == pytest.approx((2 * cell, 3 * cell), abs=2)
    for row in range(round(2.1 * cell), round(2.9 * cell)):  # straight sides
        assert x[y == row].min() <= 3 * cell + 1


@pytest.mark.parametrize("size", [(97, 131), (13, 17), (40, 1600), (1600, 40), (1, 1)])
def test_any_image_and_any_number_of_words(size: tuple[int, int]) -> None:
    photo = np.zeros((*size, 3), np.uint8)
    for count in (1, 7):
        drawn = alignment_image_size(size, width=600)
        figure = np.asarray(
            alignment_panel(
                photo,
                ["incomprehensibilities"] * count,
                np.full((count, drawn[1]), np.nan),
                maps=np.zeros((count, *drawn)),
                log_probs=[-0.5] * count,
                width=600,
            ).paint()
        )
        assert figure.shape[1] == 600
        for edge in (figure[:20], figure[-20:], figure[:, :MARGIN], figure[:, -10:]):
            assert (edge == BACKGROUND).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": []}, "at least one word"),
        (
            {"columns": np.zeros((2, 7))},
            r"there must be 552 columns .* got columns of shape \(2, 7\)",
        ),
        ({"log_probs": [0.0]}, "log-probability for each of 2 words"),
        ({"maps": np.zeros((2, 3, 5))}, r"maps must have the shape .* got \(2, 3, 5\)"),
        ({"width": 300}, "at least 560 pixels wide, got 300"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"words": ["4", "2"], "columns": np.zeros((2, 552)), "width": 820, **changes}
    with pytest.raises(ValueError, match=message):
        alignment_panel(PHOTO, **arguments)
