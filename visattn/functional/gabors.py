"""How strongly a picture is striped, in each of several directions."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad


def gabor_pairs(
    *, orientations: int = 4, wavelength: float = 4.0, spread: float = 1.25, radius: int = 4
) -> Float[Tensor, "o 2 k k"]:
    """Return pairs of waves under a bell, one even and one odd, in float64.

    The wave of orientation o runs in the direction of o · 180° / orientations, from the right
    towards the bottom; its stripes stand across that. A constant gives 0 and a wave of the same
    kind with amplitude 1 gives 1, as the root of the sum of the squares of both.

    Args:
        orientations: How many directions, evenly over half a turn.
        wavelength: From stripe to stripe, in pixels.
        spread: Standard deviation of the bell, in pixels.
        radius: Pixels on each side of the middle one.

    Raises:
        ValueError: If there is no orientation, or a length is not positive.

    Example:
        >>> even, odd = gabor_pairs()[0]
        >>> [round(float(wave[4, 4]), 4) for wave in (even, odd)]
        [0.1816, 0.0]

    Source:
        Daugman 1985, "Uncertainty relation for resolution in space, spatial frequency, and
        orientation optimized by two-dimensional visual cortical filters", equation 1.
        Deviation: of the even wave so much of the bell is taken off that a constant gives 0.
    """
    if orientations < 1 or radius < 1 or min(wavelength, spread) <= 0:
        raise ValueError(
            "orientations and radius must be at least 1, wavelength and spread above 0; got "
            f"{orientations=}, {radius=}, {wavelength=}, {spread=}"
        )
    steps = torch.arange(-radius, radius + 1, dtype=torch.float64)
    angles = torch.arange(orientations, dtype=torch.float64) * (math.pi / orientations)
    along = angles.cos()[:, None, None] * steps + angles.sin()[:, None, None] * steps[:, None]
    phase = along * (2 * math.pi / wavelength)
    bell = (-(steps.square() + steps.square()[:, None]) / (2 * spread**2)).exp()
    even, odd = bell * phase.cos(), bell * phase.sin()
    even = even - bell * even.sum((1, 2), keepdim=True) / bell.sum()
    even = even / (even * phase.cos()).sum((1, 2), keepdim=True)
    return torch.stack((even, odd / (odd * phase.sin()).sum((1, 2), keepdim=True)), 1)


def orientation_energies(
    x: Float[Tensor, "b y x"], *, orientations: int = 4
) -> Float[Tensor, "b o y x"]:
    """Return how strongly the picture is striped at each place, in each direction.

    That is the length of the pair of an even and an odd response of `gabor_pairs`, so that it does
    not matter whether a place lies on a stripe or beside it. Beyond its edge the picture goes on as
    it ends there.

    Args:
        x: Brightness.
        orientations: How many directions, evenly over half a turn; the first is that of stripes
            that stand upright.

    Raises:
        ValueError: If there is no orientation.

    Example:
        >>> upright = (torch.arange(31) * (math.pi / 2)).cos().expand(1, 31, 31)
        >>> [round(float(of), 2) for of in orientation_energies(upright)[0, :, 15, 15]]
        [1.0, 0.32, 0.0, 0.32]

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1. Deviation: Gabor pairs on a Gaussian pyramid instead of the pyramid
        of Greenspan et al. 1994, whose wave of four pixels they have.
    """
    pairs = gabor_pairs(orientations=orientations).to(x)
    radius = pairs.shape[-1] // 2
    wide = pad(x[:, None], (radius,) * 4, mode="replicate")
    even, odd = conv2d(wide, pairs.transpose(0, 1).flatten(0, 1)[:, None]).chunk(2, 1)
    # the slope of a root has no end at 0, where nothing is striped
    return (even.square() + odd.square()).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
