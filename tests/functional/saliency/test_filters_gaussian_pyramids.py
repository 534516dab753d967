"""Levels of a pyramid, against weights that are written out, and what holds for all sizes."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.functional.saliency.filters import (
    center_surround,
    gaussian_pyramid,
    resize_antialiased,
)


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("side", [2, 3, 5, 8, 11])
def test_a_level_is_the_weighted_mean_of_what_is_up_to_one_of_its_places_away(side: int) -> None:
    x = numbers(1, 1, 1, side)
    half = (side + 1) // 2
    wide = side / half
    wanted = []
    for place in range(half):
        middle = (place + 0.5) * wide
        weights = [max(0.0, 1 - abs(cell + 0.5 - middle) / wide) for cell in range(side)]
        total = sum(w * float(v) for w, v in zip(weights, x[0, 0, 0], strict=True))
        wanted.append(total / sum(weights))
    got = gaussian_pyramid(x, 2)[1]
    torch.testing.assert_close(got[0, 0, 0], torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def test_inside_a_row_of_even_length_the_weights_are_the_binomial() -> None:
    impulse = torch.zeros(1, 1, 1, 12)
    impulse[..., 5] = 8.0
    assert gaussian_pyramid(impulse, 2)[1].flatten().tolist() == [0, 0, 3, 1, 0, 0]


def test_a_finer_grid_is_interpolated_between_the_middles_of_places() -> None:
    assert resize_antialiased(torch.tensor([[[[0.0, 8.0]]]]), (1, 4)).flatten().tolist() == [
        0,
        2,
        6,
        8,
    ]


@settings(max_examples=15)
@given(height=st.integers(1, 23), width=st.integers(1, 23), levels=st.integers(1, 7))
def test_levels_halve_keep_constants_and_follow_flips(height: int, width: int, levels: int) -> None:
    x = numbers(2, 3, height, width)
    pyramid = gaussian_pyramid(x, levels)
    assert pyramid[0] is x
    assert [tuple(level.shape[2:]) for level in pyramid] == [
        (-(-height // 2**level), -(-width // 2**level)) for level in range(levels)
    ]
    flat = gaussian_pyramid(torch.full_like(x, 0.3), levels)[-1]
    torch.testing.assert_close(flat, torch.full_like(flat, 0.3))
    for axis in (2, 3):
        mirrored = gaussian_pyramid(x.flip(axis), levels)[-1]
        torch.testing.assert_close(mirrored, pyramid[-1].flip(axis))


def test_center_and_surround_do_not_know_which_is_larger() -> None:
    x = numbers(2, 3, 13, 11)
    fine, _, coarse = gaussian_pyramid(x, 3)
    got = center_surround(fine, coarse)
    assert torch.equal(got, center_surround(-fine, -coarse))
    assert torch.equal(got, (fine - resize_antialiased(coarse, (13, 11))).abs())


def test_a_pyramid_without_levels_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 level, got levels=0"):
        gaussian_pyramid(numbers(1, 1, 3, 5), 0)
