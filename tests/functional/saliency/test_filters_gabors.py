"""Waves under a bell: what they answer to stripes, to constants and to turned images."""

import math

import pytest
import torch

from visattn.functional.saliency.filters import gabor_energy, gabor_filters


@pytest.mark.parametrize(("orientations", "wavelength"), [(1, 5.0), (3, 7.0), (4, 4.0)])
def test_a_pair_ignores_constants_and_gives_the_amplitude_of_its_wave(
    orientations: int, wavelength: float
) -> None:
    pairs = gabor_filters(num_orientations=orientations, wavelength=wavelength)
    assert pairs.sum((2, 3)).abs().max() < 1e-12
    for o, (even, odd) in enumerate(pairs):
        angle = o * math.pi / orientations
        for phase in (0.0, 0.7, 2.1):
            answers = [0.0, 0.0]
            for y in range(-4, 5):
                for x in range(-4, 5):
                    along = x * math.cos(angle) + y * math.sin(angle)
                    wave = math.cos(2 * math.pi * along / wavelength - phase)
                    answers[0] += float(even[y + 4, x + 4]) * wave
                    answers[1] += float(odd[y + 4, x + 4]) * wave
            assert math.hypot(*answers) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("o", range(4))
def test_stripes_are_found_in_their_own_direction_wherever_they_lie(o: int) -> None:
    down, across = torch.arange(29).double()[:, None], torch.arange(31).double()
    along = across * math.cos(o * math.pi / 4) + down * math.sin(o * math.pi / 4)
    waves = torch.stack([(math.pi * along / 2 + phase).sin() for phase in (0.0, 1.3)])
    energies = gabor_energy(0.5 + 0.25 * waves)[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(energies[:, o], torch.full_like(energies[:, o], 0.25))
    others = [other for other in range(4) if other != o]
    assert energies[:, others].max() < 0.09


def test_energies_are_the_length_of_both_answers() -> None:
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


def test_a_mirrored_image_swaps_the_slanted_directions() -> None:
    x = torch.rand(1, 13, 17, generator=torch.Generator().manual_seed(0)).double()
    got = gabor_energy(x)
    mirrored = gabor_energy(x.flip(2)).flip(3)
    torch.testing.assert_close(mirrored, got[:, [0, 3, 2, 1]])


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_a_single_pixel_has_no_stripes_and_no_endless_slope(value: float) -> None:
    x = torch.full((1, 1, 1), value, requires_grad=True)
    energies = gabor_energy(x)
    assert energies.max() < 1e-6
    energies.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_what_is_no_wave_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, wavelength and sigma above 0; got num_ori"):
        gabor_filters(num_orientations=0)
    with pytest.raises(ValueError, match=r"wavelength=0\.0"):
        gabor_filters(wavelength=0.0)
