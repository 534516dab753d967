"""What is unexpected in an image's spectrum, and where in the image it lies."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from visattn.functional.numerics import at_least_float32, gaussian_blur, without_autocast
from visattn.functional.saliency.filters import resized

_FAINT = 1e-5  # of the largest amplitude: what is below holds rounding errors


def spectral_residual(
    images: Float[Tensor, "b c y x"], *, side: int = 64, blur: float = 2.5
) -> Float[Tensor, "b h w"]:
    """Return how unexpected each place of an image is, on a coarse grid, at least in float32.

    Spectra of natural images fall off smoothly. What stands out from the smoothed logarithm of
    the amplitudes is kept with its phases, and carried back. An image does not depend on the
    others of its batch, a mirrored one gives the map mirrored, a brighter one the same map.

    Args:
        images: Of any channels, which are averaged.
        side: Rows or columns, whichever are fewer, of the grid; of an image that has fewer, its
            own.
        blur: Standard deviation in places by which the map is smoothed at the end.

    Raises:
        ValueError: If side is below 1, or blur not above 0.

    Example:
        >>> image = torch.zeros(1, 1, 64, 96)
        >>> image[:, :, 40:43, 20:23] = 1.0
        >>> found = spectral_residual(image)
        >>> found.shape, divmod(int(found.argmax()), 96)
        (torch.Size([1, 64, 96]), (41, 21))

    Source:
        Hou and Zhang 2007, "Saliency Detection: A Spectral Residual Approach", equations 3 to 6;
        side and blur as in the authors' code. Deviation: the mean of the log amplitudes goes
        around the border of the spectrum, which has none.
    """
    if side < 1 or not blur > 0:
        raise ValueError(f"side must be at least 1 and blur above 0, got {side=}, {blur=}")
    height, width = images.shape[2:]
    step = max(1.0, min(height, width) / side)
    gray = at_least_float32(images).mean(1, keepdim=True)
    with without_autocast(images.device):
        small = resized(gray, (round(height / step), round(width / step)))
        spectra = cast("Tensor", torch.fft.fft2(small))  # pyright: ignore[reportUnknownMemberType]
        amplitudes = spectra.abs()
        faint = _FAINT * amplitudes.amax((2, 3), keepdim=True)
        faint = faint.clamp_min(torch.finfo(faint.dtype).tiny)
        logs = torch.maximum(amplitudes, faint).log()
        expected = avg_pool2d(pad(logs, (1, 1, 1, 1), mode="circular"), 3, stride=1)
        # exp(log a - expected) with the old phase is the old number times exp(-expected)
        whitened = spectra * (-expected).exp()
        back = cast("Tensor", torch.fft.ifft2(whitened))  # pyright: ignore[reportUnknownMemberType]
        return gaussian_blur(back.abs().square(), blur)[:, 0]
