"""Spectral residual saliency against a NumPy implementation of the paper."""

import math

import numpy as np
import pytest
import torch

from visattn.attribution.saliency import spectral_residual


def plain(image: np.ndarray, blur: float) -> np.ndarray:
    """Return equations 3 to 6 of the paper for a gray image at its own size."""
    spectrum = np.fft.fft2(image)
    logs, phases = np.log(np.abs(spectrum)), np.angle(spectrum)
    rows, columns = image.shape
    residual = np.empty_like(logs)
    for y in range(rows):
        for x in range(columns):
            around = [
                logs[(y + down) % rows, (x + across) % columns]
                for down in (-1, 0, 1)
                for across in (-1, 0, 1)
            ]
            residual[y, x] = logs[y, x] - sum(around) / 9
    saliency = np.abs(np.fft.ifft2(np.exp(residual + 1j * phases))) ** 2
    reach = math.ceil(3 * blur)
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * blur**2))
    bell /= bell.sum()
    wide = np.pad(saliency, reach, mode="edge")
    wide = np.array([np.convolve(row, bell, "valid") for row in wide])
    return np.array([np.convolve(column, bell, "valid") for column in wide.T]).T


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [(13, 17), (8, 12)])
def test_matches_the_paper(size: tuple[int, int]) -> None:
    image = noise(2, 1, *size)
    saliency = spectral_residual(image, sigma=1.3)
    for plane, given_one in zip(saliency, image, strict=True):
        np.testing.assert_allclose(plane.numpy(), plain(given_one[0].numpy(), 1.3), rtol=1e-8)


def test_constant_image_has_uniform_saliency() -> None:
    saliency = spectral_residual(torch.full((1, 3, 40, 60), 0.7))
    assert saliency.max() - saliency.min() < 1e-3 * saliency.max()
    assert not spectral_residual(torch.zeros(1, 3, 40, 60)).any()


def test_large_images_are_computed_on_a_coarse_grid() -> None:
    assert spectral_residual(noise(1, 3, 97, 131), grid_size=31).shape == (1, 31, 42)
    assert spectral_residual(noise(1, 3, 19, 23), grid_size=31).shape == (1, 19, 23)


def test_grid_size_and_sigma_must_be_positive() -> None:
    with pytest.raises(ValueError, match="grid_size must be at least 1 and sigma above 0"):
        spectral_residual(noise(1, 1, 5, 5), grid_size=0)
    assert spectral_residual(noise(1, 1, 5, 5), grid_size=1, sigma=0.5).shape == (1, 1, 1)
