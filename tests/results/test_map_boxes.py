"""Boxes of maps: laws, numbers by hand, and their place on photos that were turned or cropped."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap

GRIDS = st.tuples(st.integers(1, 7), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.int8, shape, elements=st.integers(-1, 4))
)


def cells(values: object, geometry: Geometry) -> AttentionMap:
    return AttentionMap(torch.as_tensor(values).float(), "x", "gradient", geometry)


@given(GRIDS, st.sampled_from([0.25, 0.5, 0.75, 1.0]))
@settings(max_examples=60, deadline=None)
def test_boxes_contain_exactly_the_cells_above_the_threshold(
    grid: np.ndarray, share: float
) -> None:
    """Cells of 3 x 2 pixels: every cell above lies in its box, and touches no other part."""
    result = cells(grid, Geometry.identity((3 * grid.shape[0], 2 * grid.shape[1]))).boxes(
        share, smooth=False
    )
    high = (grid > 0) & (grid >= share * grid.max())
    covered = np.zeros(grid.shape, bool)
    for each in result:
        left, top, right, bottom = each.box
        assert left % 2 == right % 2 == top % 3 == bottom % 3 == 0
        inside = high[int(top) // 3 : int(bottom) // 3, int(left) // 2 : int(right) // 2]
        assert inside.any(0)[[0, -1]].all()  # no box could be smaller
        assert inside.any(1)[[0, -1]].all()
        covered[int(top) // 3 : int(bottom) // 3, int(left) // 2 : int(right) // 2] = True
    assert (covered | ~high).all()
    positive = grid.clip(0).astype(float)
    mass = positive[high].sum() / max(positive.sum(), 1)
    assert sum(each.score for each in result) == pytest.approx(mass)
    assert [each.score for each in result] == sorted((e.score for e in result), reverse=True)


@given(GRIDS)
@settings(max_examples=30, deadline=None)
def test_boxes_enclose_the_mask_of_the_map(grid: np.ndarray) -> None:
    """They are those of the run-length encoding, which interpolates between cells."""
    size = (3 * grid.shape[0] + 2, 2 * grid.shape[1] + 5)
    heat = cells(grid, Geometry.identity((size[0], size[1] + 3)).cropped(0, 2, size))
    result = heat.boxes(0.5)
    if grid.max() <= 0:
        assert len(result) == 0
        return
    values = heat.resize_to_image().numpy()
    mask = values >= 0.5 * np.nanmax(values)
    covered = np.zeros_like(mask)
    for left, top, right, bottom in (map(int, each.box) for each in result):
        assert mask[top:bottom, left:right].any(0)[[0, -1]].all()
        assert mask[top:bottom, left:right].any(1)[[0, -1]].all()
        covered[top:bottom, left:right] = True
    assert (covered | ~mask).all()


def test_two_parts_by_hand() -> None:
    """Values 8, 2; 0, 0; 3, 5 on 6 x 4 pixels: above 4 one cell each, above 2 both rows."""
    heat = cells([[8.0, 2.0], [0.0, 0.0], [3.0, 5.0]], Geometry.identity((6, 4)))
    halves = heat.boxes(0.5, smooth=False)
    assert [(each.box, each.peak) for each in halves] == [
        ((0.0, 0.0, 2.0, 2.0), 8.0), ((2.0, 4.0, 4.0, 6.0), 5.0)
    ]  # fmt: skip
    assert [each.score for each in halves] == pytest.approx([8 / 18, 5 / 18])
    two = heat.boxes(0.25, smooth=False)
    assert [each.box for each in two] == [(0.0, 0.0, 4.0, 2.0), (0.0, 4.0, 4.0, 6.0)]
    assert (two.threshold, two.image_size) == (0.25, (6, 4))
    corner = cells([[8.0, 0.0, 0.0], [0.0, 6.0, 0.0]], Geometry.identity((2, 3)))
    [box] = corner.boxes(0.5, smooth=False)  # cells that touch at a corner are one part
    assert (box.box, box.score) == ((0.0, 0.0, 2.0, 2.0), 1.0)


def test_boxes_lie_on_the_visible_part() -> None:
    """The crop shows columns 3 to 7 of 10; a uniform map has its box there and nowhere else."""
    crop = Geometry.identity((6, 10)).cropped(0, 3, (6, 4)).resized((60, 40)).flipped()
    [result] = cells(torch.ones(3, 2), crop).boxes()
    assert (result.box, result.score) == ((3.0, 0.0, 7.0, 6.0), 1.0)
    [left] = cells([[0.0, 1.0]], crop).boxes(smooth=False)
    assert left.box == (3.0, 0.0, 5.0, 6.0)  # flipped


def test_several_maps_and_a_map_of_nothing() -> None:
    values = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 3.0]]])
    labels = ("a", "red", "dog")
    maps = AttentionMap(values, "x", "words", Geometry.identity((2, 4)), labels=labels)
    result = maps.boxes(smooth=False)
    assert [(each.label, each.map_index) for each in result] == [("a", 0), ("dog", 2)]
    assert result.per_map() == [[(0.0, 0.0, 2.0, 2.0)], [], [(2.0, 0.0, 4.0, 2.0)]]
    assert len(maps[1].boxes()) == 0
