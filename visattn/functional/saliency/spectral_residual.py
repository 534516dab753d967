"""Spectral residual saliency (Hou and Zhang 2007)."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from visattn.functional.numerics import at_least_float32, gaussian_blur, without_autocast
from visattn.functional.saliency.filters import resize_antialiased

_MIN_AMPLITUDE = 1e-5  # relative to the maximum: lower amplitudes are rounding errors


def spectral_residual(
    images: Float[Tensor, "b c y x"], *, grid_size: int = 64, sigma: float = 2.5
) -> Float[Tensor, "b h w"]:
    """Return the spectral residual saliency map on a coarse grid, in float32 at least.

    The residual of the log amplitude spectrum against its local mean is transformed back with the
    original phases. A flipped image gives the flipped map, a brighter one the same map.

    Args:
        images: Images; channels are averaged.
        grid_size: Shorter side of the grid; at most the shorter side of the image.
        sigma: Standard deviation of the final Gaussian blur, in grid cells.

    Raises:
        ValueError: If `grid_size` is below 1 or `sigma` not above 0.

    Example:
        >>> image = torch.zeros(1, 1, 64, 96)
        >>> image[:, :, 40:43, 20:23] = 1.0
        >>> saliency = spectral_residual(image)
        >>> saliency.shape, divmod(int(saliency.argmax()), 96)
        (torch.Size([1, 64, 96]), (41, 21))

    Source:
        Hou and Zhang 2007, "Saliency Detection: A Spectral Residual Approach", equations 3 to 6;
        grid size and sigma as in the authors' code. Deviation: the local mean of the log amplitudes
        wraps around, since the spectrum is periodic.
    """
    if grid_size < 1 or not sigma > 0:
        raise ValueError(
            f"grid_size must be at least 1 and sigma above 0, got {grid_size=}, {sigma=}"
        )
    height, width = images.shape[2:]
    step = max(1.0, min(height, width) / grid_size)
    gray = at_least_float32(images).mean(1, keepdim=True)
    with without_autocast(images.device):
        small = resize_antialiased(gray, (round(height / step), round(width / step)))
        spectra = cast("Tensor", torch.fft.fft2(small))  # pyright: ignore[reportUnknownMemberType]
        amplitudes = spectra.abs()
        floor = _MIN_AMPLITUDE * amplitudes.amax((2, 3), keepdim=True)
        floor = floor.clamp_min(torch.finfo(floor.dtype).tiny)
        logs = torch.maximum(amplitudes, floor).log()
        expected = avg_pool2d(pad(logs, (1, 1, 1, 1), mode="circular"), 3, stride=1)
        # exp(log a - expected) with the same phase is the spectrum times exp(-expected)
        whitened = spectra * (-expected).exp()
        back = cast("Tensor", torch.fft.ifft2(whitened))  # pyright: ignore[reportUnknownMemberType]
        return gaussian_blur(back.abs().square(), sigma)[:, 0]
