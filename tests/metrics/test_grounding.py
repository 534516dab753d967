"""Box coverage, attention correctness and pointing against counting."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    box_target,
    paper_correctness,
    pointing_hit,
    uniform_baseline,
)

STEPS = st.integers(0, 60)  # corners on sixtieths, so that counting small squares is exact
BOXES = st.lists(st.tuples(STEPS, STEPS, STEPS, STEPS), max_size=5)


def ordered(corners: list[tuple[int, int, int, int]]) -> Tensor:
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    return torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4) / 60


@given(corners=BOXES, grid=st.tuples(st.integers(1, 13), st.integers(1, 13)))
def test_union_of_boxes_equals_counted_squares(
    corners: list[tuple[int, int, int, int]], grid: tuple[int, int]
) -> None:
    boxes = ordered(corners)
    rows, columns = grid
    squares = torch.zeros(60, 60, dtype=torch.float64)
    for left, top, right, bottom in (boxes * 60).round().long().tolist():
        squares[top:bottom, left:right] = 1
    # Squares divided as often as there are cells, so that each part lies in one cell.
    parts = squares.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    counted = parts.reshape(rows, 60, columns, 60).mean((1, 3))
    torch.testing.assert_close(box_coverage(boxes, grid), counted)
    beyond = 9 * boxes - 4
    torch.testing.assert_close(box_coverage(beyond, grid), box_coverage(beyond.clamp(0, 1), grid))


def test_rounding_of_half_precision_is_divided_out() -> None:
    even = torch.full((6, 20), 1 / 120, dtype=torch.bfloat16)
    assert even.float().sum() > 1.003
    coverage = torch.ones(6, 20).tril()
    for weights in (even, even.float()):
        scores = attention_correctness(weights, coverage)
        torch.testing.assert_close(scores, uniform_baseline(coverage))


def test_weights_that_do_not_sum_to_one_and_no_boxes_are_refused() -> None:
    with pytest.raises(ValueError, match="must sum to 1, got 2 to 2; divide each map by its sum"):
        attention_correctness(torch.full((2, 2), 0.5), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="at least one box must overlap the image"):
        box_target(torch.zeros(0, 4), (2, 2))


def test_pointing_by_hand() -> None:
    weights = torch.zeros(2, 4, 5)
    weights[0, 1, 3], weights[1, 3, 0] = 1, 1  # centers (0.7, 0.375) and (0.1, 0.875)
    boxes = torch.tensor([[0.65, 0.3, 0.75, 0.4], [0.1, 0.875, 0.2, 0.9]])
    assert pointing_hit(weights, boxes).tolist() == [True, True]  # edges are inside
    assert pointing_hit(weights, boxes[:1]).tolist() == [True, False]
    assert pointing_hit(weights, torch.zeros(0, 4)).tolist() == [False, False]
    swapped = boxes[:, [1, 0, 3, 2]]
    assert pointing_hit(weights[0], swapped).item() is False


def by_the_papers_steps(weights: Tensor, boxes: Tensor) -> tuple[list[float], float]:
    """Return the value of `paper_correctness` by upsampling maps and filling boxes."""
    mask = torch.zeros(224, 224, dtype=torch.float64)
    for box in boxes.tolist():
        x0, y0, x1, y1 = (min(max(round(end * 224), 1), 224) for end in box)
        mask[y0 - 1 : y1, x0 - 1 : x1] = 1
    scores = []
    for weight in weights.double():
        large = interpolate(weight[None, None], (224, 224), mode="bicubic")[0, 0]
        scores.append(float((large / large.sum() * mask).sum()))
    return scores, float(mask.mean())


@given(corners=BOXES, grid=st.sampled_from([(7, 7), (14, 14), (5, 3), (1, 2)]))
def test_correctness_of_the_paper_equals_upsampled_maps(
    corners: list[tuple[int, int, int, int]], grid: tuple[int, int]
) -> None:
    boxes = ordered(corners)
    random = torch.Generator().manual_seed(grid[0])
    weights = torch.randn(3, grid[0] * grid[1], generator=random, dtype=torch.float64)
    weights = (4 * weights).softmax(-1).view(3, *grid)
    scores, baseline = paper_correctness(weights, boxes)
    expected, expected_baseline = by_the_papers_steps(weights, boxes)
    assert scores.tolist() == pytest.approx(expected, abs=1e-9)
    assert float(baseline) == pytest.approx(expected_baseline, abs=1e-9)
