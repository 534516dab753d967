"""Gaussian pyramids and Gabor energies against explicit weights, and their invariances."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.attribution.saliency import (
    gabor_energy,
    gabor_filters,
    gaussian_pyramid,
    resize_antialiased,
)


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("side", [2, 3, 5, 8, 11])
def test_pyramid_level_matches_a_weighted_mean(side: int) -> None:
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


def test_upsampling_interpolates_between_cell_centers() -> None:
    assert resize_antialiased(torch.tensor([[[[0.0, 8.0]]]]), (1, 4)).flatten().tolist() == [
        0,
        2,
        6,
        8,
    ]


@settings(max_examples=15)
@given(height=st.integers(1, 23), width=st.integers(1, 23), levels=st.integers(1, 7))
def test_levels_halve_keep_constants_and_are_flip_equivariant(
    height: int, width: int, levels: int
) -> None:
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


def test_quadrature_pair_ignores_constants_and_returns_the_amplitude() -> None:
    pairs = gabor_filters()
    assert pairs.sum((2, 3)).abs().max() < 1e-12
    for o, (even, odd) in enumerate(pairs):
        angle = o * math.pi / 4
        for phase in (0.0, 0.7, 2.1):
            answers = [0.0, 0.0]
            for y in range(-4, 5):
                for x in range(-4, 5):
                    along = x * math.cos(angle) + y * math.sin(angle)
                    wave = math.cos(math.pi * along / 2 - phase)
                    answers[0] += float(even[y + 4, x + 4]) * wave
                    answers[1] += float(odd[y + 4, x + 4]) * wave
            assert math.hypot(*answers) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("o", range(4))
def test_gratings_have_most_energy_in_their_own_orientation(o: int) -> None:
    down, across = torch.arange(29).double()[:, None], torch.arange(31).double()
    along = across * math.cos(o * math.pi / 4) + down * math.sin(o * math.pi / 4)
    waves = torch.stack([(math.pi * along / 2 + phase).sin() for phase in (0.0, 1.3)])
    energies = gabor_energy(0.5 + 0.25 * waves)[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(energies[:, o], torch.full_like(energies[:, o], 0.25))
    others = [other for other in range(4) if other != o]
    assert energies[:, others].max() < 0.09


def test_energy_is_the_norm_of_the_quadrature_pair() -> None:
    x = torch.rand(2, 13, 17, generator=torch.Generator().manual_seed(0)).double()
    got = gabor_energy(x)
    for y, column in ((0, 0), (6, 9), (12, 16), (3, 16)):
        for o, pair in enumerate(gabor_filters()):
            answers = [0.0, 0.0]
            for phase in (0, 1):
                for dy in range(-4, 5):
                    for dx in range(-4, 5):
                        value = x[1, min(max(y + dy, 0), 12), min(max(column + dx, 0), 16)]
                        answers[phase] += float(pair[phase, dy + 4, dx + 4] * value)
            assert float(got[1, o, y, column]) == pytest.approx(math.hypot(*answers), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_single_pixel_has_zero_energy_and_finite_gradients(value: float) -> None:
    x = torch.full((1, 1, 1), value, requires_grad=True)
    energies = gabor_energy(x)
    assert energies.max() < 1e-6
    energies.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
