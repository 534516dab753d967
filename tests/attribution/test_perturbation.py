"""Occlusion and RISE: their masks, and their maps against plain loops over images and masks."""

import torch
from hypothesis import given, settings, strategies as st
from small_models import images, small_cnn
from torch.nn.functional import interpolate

from visattn.attribution.perturbation import (
    occlusion,
    occlusion_windows,
    rise,
    rise_grids,
    rise_masks,
    window_masks,
)
from visattn.attribution.targets import resolve_target


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 23), st.integers(1, 29), st.integers(1, 31), st.integers(1, 31))
def test_windows_cover_the_image_and_stay_inside(
    rows: int, columns: int, side: int, step: int
) -> None:
    step = min(step, side)
    windows = occlusion_windows((rows, columns), window_size=(side, side), stride=(step, step))
    masks = window_masks(windows, (rows, columns))
    assert masks.any(0).all()
    assert masks.flatten(1).any(1).all()
    assert (windows >= 0).all()
    assert (windows[:, 2] <= columns).all()
    assert (windows[:, 3] <= rows).all()


def test_rise_masks_are_crops_of_upsampled_grids() -> None:
    size, cells = (11, 17), 3
    grids, shifts = rise_grids(5, num_cells=cells, keep_probability=0.5, seed=1)
    result = rise_masks(grids, shifts, size)
    for mask, grid, shift in zip(result, grids, shifts.tolist(), strict=True):
        # a cell of 4 x 6 pixels: 11 / 3 and 17 / 3, rounded up
        large = interpolate(grid[None, None].double(), (4 * 4, 4 * 6), mode="bilinear")[0, 0]
        top, left = int(shift[0] * 4), int(shift[1] * 6)
        expected = large[top : top + 11, left : left + 17]
        torch.testing.assert_close(mask.double(), expected, atol=1e-5, rtol=0)


def test_occlusion_is_the_mean_decrease_over_all_windows_of_a_pixel() -> None:
    subject, x = small_cnn(), images()
    result = occlusion(
        subject,
        x,
        resolve_target([1, 2], subject),
        sliding_window_size=5,
        stride=4,
        baselines="black",
    )
    model = subject.model.eval()
    with torch.no_grad():
        for row, class_index in ((0, 1), (1, 2)):
            total, counts = torch.zeros(2, 13, 17, dtype=torch.float64)
            original = model(x[row : row + 1]).softmax(1)[0, class_index]
            for top in range(0, 13, 4):
                for left in range(0, 17, 4):
                    if top - 4 + 5 >= 13 or left - 4 + 5 >= 17:
                        continue  # the previous window reached the border
                    hidden = x[row : row + 1].clone()
                    hidden[:, :, top : top + 5, left : left + 5] = -2
                    decrease = original - model(hidden).softmax(1)[0, class_index]
                    total[top : top + 5, left : left + 5] += decrease
                    counts[top : top + 5, left : left + 5] += 1
            torch.testing.assert_close(result[row], total / counts)


def test_rise_is_the_mean_of_masks_weighted_by_scores() -> None:
    subject, x = small_cnn(), images()
    options = {"num_masks": 11, "grid_size": 3, "keep_probability": 0.4, "seed": 2}
    result = rise(subject, x, resolve_target([0, 3], subject), **options)
    masks = rise_masks(
        *rise_grids(11, num_cells=3, keep_probability=0.4, seed=2), (13, 17)
    ).double()
    expected = torch.zeros(2, 13, 17, dtype=torch.float64)
    with torch.no_grad():
        for row, class_index in ((0, 0), (1, 3)):
            for mask in masks:
                score = subject.model.eval()((mask * x[row])[None]).softmax(1)[0, class_index]
                expected[row] += score * mask / (11 * 0.4)
    torch.testing.assert_close(result, expected)
