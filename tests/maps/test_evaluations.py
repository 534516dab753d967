"""Areas, shares and hits, against counting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from visattn.maps.evaluations import (
    attention_correctness,
    boxes_coverage,
    cell_coverage,
    pointing_hit,
    uniform_baseline,
)

GRIDS = st.tuples(st.integers(1, 13), st.integers(1, 13))
STEPS = st.integers(0, 60)  # corners on sixtieths, so that counting small squares is exact
BOXES = st.lists(st.tuples(STEPS, STEPS, STEPS, STEPS), max_size=5)


def ordered(corners: list[tuple[int, int, int, int]]) -> Tensor:
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    return torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4) / 60


def filled(boxes: Tensor) -> Tensor:
    """Return a mask of 60 x 60 small squares, True inside at least one box."""
    mask = torch.zeros(60, 60, dtype=torch.bool)
    for left, top, right, bottom in (boxes * 60).round().long().tolist():
        mask[top:bottom, left:right] = True
    return mask


@given(corners=BOXES, grid=st.sampled_from([(1, 1), (3, 5), (4, 6), (12, 10), (60, 60), (2, 30)]))
def test_union_of_boxes_equals_counted_squares(
    corners: list[tuple[int, int, int, int]], grid: tuple[int, int]
) -> None:
    boxes = ordered(corners)
    rows, columns = grid
    counted = filled(boxes).double().reshape(rows, 60 // rows, columns, 60 // columns)
    torch.testing.assert_close(boxes_coverage(boxes, grid), counted.mean((1, 3)))


@given(corners=BOXES, grid=GRIDS)
def test_boxes_and_masks_agree_on_every_grid(
    corners: list[tuple[int, int, int, int]], grid: tuple[int, int]
) -> None:
    boxes = ordered(corners)
    by_mask = cell_coverage(filled(boxes), grid)
    torch.testing.assert_close(boxes_coverage(boxes, grid).float(), by_mask, atol=1e-6, rtol=0)


@given(grid=GRIDS, y=st.integers(1, 17), x=st.integers(1, 17))
def test_no_area_is_lost(grid: tuple[int, int], y: int, x: int) -> None:
    mask = torch.rand(3, y, x, generator=torch.Generator().manual_seed(y * x)) > 0.5
    coverage = cell_coverage(mask, grid)
    assert coverage.shape == (3, *grid)
    torch.testing.assert_close(coverage.mean((-2, -1)), mask.float().mean((-2, -1)))


def test_coverage_by_hand() -> None:
    boxes = torch.tensor([[0.25, 0.0, 0.75, 0.5], [-3.0, 0.75, 0.5, 9.0]])
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.0]])
    torch.testing.assert_close(boxes_coverage(boxes, (2, 2)), expected)
    assert not boxes_coverage(torch.zeros(0, 4), (2, 3)).any()


def test_even_attention_scores_the_baseline_and_all_inside_scores_one() -> None:
    coverage = cell_coverage(torch.eye(7, dtype=torch.bool), (7, 7))
    even = torch.full((7, 7), 1 / 49)
    torch.testing.assert_close(attention_correctness(even, coverage), uniform_baseline(coverage))
    torch.testing.assert_close(attention_correctness(coverage / 7, coverage), torch.tensor(1.0))


def test_each_map_of_a_batch_has_its_own_score() -> None:
    weights = torch.rand(2, 3, 5, 7).flatten(-2).softmax(-1).view(2, 3, 5, 7)
    coverage = torch.rand(2, 3, 5, 7)
    scores = attention_correctness(weights, coverage)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores[1, 2], attention_correctness(weights[1, 2], coverage[1, 2]))


def test_weights_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ValueError, match="must sum to 1, got 2 to 2; divide each map by its sum"):
        attention_correctness(torch.full((2, 2), 0.5), torch.zeros(2, 2))


def test_pointing_by_hand() -> None:
    weights = torch.zeros(2, 4, 5)
    weights[0, 1, 3], weights[1, 3, 0] = 1, 1  # centres (0.7, 0.375) and (0.1, 0.875)
    boxes = torch.tensor([[0.65, 0.3, 0.75, 0.4], [0.1, 0.875, 0.2, 0.9]])
    assert pointing_hit(weights, boxes).tolist() == [True, True]  # edges are inside
    assert pointing_hit(weights, boxes[:1]).tolist() == [True, False]
    assert pointing_hit(weights, torch.zeros(0, 4)).tolist() == [False, False]
    swapped = boxes[:, [1, 0, 3, 2]]
    assert pointing_hit(weights[0], swapped).item() is False
