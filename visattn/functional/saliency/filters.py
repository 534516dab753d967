"""Filters of saliency models: Gabor energy, antialiased resizing, Gaussian pyramid."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad


def gabor_filters(
    *, num_orientations: int = 4, wavelength: float = 4.0, sigma: float = 1.25, radius: int = 4
) -> Float[Tensor, "o 2 k k"]:
    """Return quadrature pairs of Gabor filters, even and odd, in float64.

    The wave of orientation o runs along the angle o · 180° / num_orientations, from the right
    towards the bottom. The energy (root of the sum of squares) of a pair is 0 for a constant image
    and 1 for a wave of amplitude 1 of the same kind.

    Args:
        num_orientations: Number of orientations, evenly over 180°.
        wavelength: Wavelength in pixels.
        sigma: Standard deviation of the Gaussian envelope, in pixels.
        radius: Pixels to each side of the center.

    Raises:
        ValueError: If there is no orientation, or a length is not positive.

    Example:
        >>> even, odd = gabor_filters()[0]
        >>> [round(float(wave[4, 4]), 4) for wave in (even, odd)]
        [0.1816, 0.0]

    Source:
        Daugman 1985, "Uncertainty relation for resolution in space, spatial frequency, and
        orientation optimized by two-dimensional visual cortical filters", equation 1.
        Deviation: a multiple of the envelope is subtracted from the even filter, so that a constant
        gives 0.
    """
    if num_orientations < 1 or radius < 1 or min(wavelength, sigma) <= 0:
        raise ValueError(
            "orientations and radius must be at least 1, wavelength and sigma above 0; got "
            f"{num_orientations=}, {radius=}, {wavelength=}, {sigma=}"
        )
    steps = torch.arange(-radius, radius + 1, dtype=torch.float64)
    angles = torch.arange(num_orientations, dtype=torch.float64) * (math.pi / num_orientations)
    along = angles.cos()[:, None, None] * steps + angles.sin()[:, None, None] * steps[:, None]
    phase = along * (2 * math.pi / wavelength)
    envelope = (-(steps.square() + steps.square()[:, None]) / (2 * sigma**2)).exp()
    even, odd = envelope * phase.cos(), envelope * phase.sin()
    even = even - envelope * even.sum((1, 2), keepdim=True) / envelope.sum()
    even = even / (even * phase.cos()).sum((1, 2), keepdim=True)
    return torch.stack((even, odd / (odd * phase.sin()).sum((1, 2), keepdim=True)), 1)


def gabor_energy(
    x: Float[Tensor, "b y x"], *, num_orientations: int = 4
) -> Float[Tensor, "b o y x"]:
    """Return the Gabor energy of each pixel for each orientation.

    The energy is the norm of the even and the odd response of `gabor_filters`, so that it does not
    depend on the phase. Border pixels are replicated.

    Args:
        x: Luminance.
        num_orientations: Number of orientations, evenly over 180°; the first responds to vertical
            stripes.

    Raises:
        ValueError: If there is no orientation.

    Example:
        >>> vertical = (torch.arange(31) * (math.pi / 2)).cos().expand(1, 31, 31)
        >>> [round(float(energy), 2) for energy in gabor_energy(vertical)[0, :, 15, 15]]
        [1.0, 0.32, 0.0, 0.32]

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1. Deviation: Gabor pairs on a Gaussian pyramid instead of the pyramid
        of Greenspan et al. 1994, with its wavelength of four pixels.
    """
    pairs = gabor_filters(num_orientations=num_orientations).to(x)
    radius = pairs.shape[-1] // 2
    wide = pad(x[:, None], (radius,) * 4, mode="replicate")
    even, odd = conv2d(wide, pairs.transpose(0, 1).flatten(0, 1)[:, None]).chunk(2, 1)
    # the gradient of a root is infinite at 0
    return (even.square() + odd.square()).clamp_min(torch.finfo(x.dtype).tiny).sqrt()


def resize_antialiased(
    x: Float[Tensor, "b c y x"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """Resize features with a triangle filter, aligned at the outer edges.

    Larger sizes are interpolated linearly; smaller ones average with a triangle filter of one
    output pixel to each side. Constants stay constant, and resizing commutes with flips.

    Args:
        x: Features.
        size: Height and width, each at least 1.

    Example:
        >>> import torch
        >>> resize_antialiased(torch.tensor([[[[0.0, 8.0, 8.0, 0.0]]]]), (1, 2))
        tensor([[[[4.5714, 4.5714]]]])
    """
    # torch 2.15: interpolate with antialias=True is wrong for inputs of one column
    down, across = (_tents(x.shape[axis], size[axis - 2]).to(x) for axis in (2, 3))
    return down @ (x @ across.T)


def _tents(side: int, count: int) -> Float[Tensor, "n m"]:
    """Return the triangle-filter weights from `side` input to `count` output pixels."""
    step = side / count
    middles = (torch.arange(count, dtype=torch.float64)[:, None] + 0.5) * step
    distance = (torch.arange(side, dtype=torch.float64) + 0.5 - middles).abs()
    weights = (1 - distance / max(step, 1.0)).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)


def gaussian_pyramid(x: Float[Tensor, "b c y x"], num_levels: int) -> tuple[Tensor, ...]:
    """Return a Gaussian pyramid; level 0 is the input.

    Level l has the height and width of x divided by 2^l, rounded up, so that any number of levels
    is possible.

    Args:
        x: Features, level 0.
        num_levels: Number of levels, including level 0.

    Raises:
        ValueError: If the number of levels is below 1.

    Example:
        >>> import torch
        >>> [tuple(level.shape[2:]) for level in gaussian_pyramid(torch.zeros(1, 3, 5, 7), 4)]
        [(5, 7), (3, 4), (2, 2), (1, 1)]

    Source:
        Burt and Adelson 1983, "The Laplacian Pyramid as a Compact Image Code", equation 1.
        Deviation: the kernel is the binomial (1, 3, 3, 1)/8 instead of five taps, so that levels
        are aligned at the edges; for odd sides a triangle of that width; at the border the kernel
        is normalized.
    """
    if num_levels < 1:
        raise ValueError(f"a pyramid has at least 1 level, got levels={num_levels}")
    pyramid = [x]
    for _ in range(num_levels - 1):
        height, width = pyramid[-1].shape[2:]
        pyramid.append(resize_antialiased(pyramid[-1], ((height + 1) // 2, (width + 1) // 2)))
    return tuple(pyramid)


def center_surround(
    center: Float[Tensor, "b c y x"], surround: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b c y x"]:
    """Return the absolute difference of a fine and a resized coarse pyramid level.

    Args:
        center: A level of a pyramid.
        surround: A coarser level of the same pyramid.

    Example:
        >>> import torch
        >>> center_surround(torch.tensor([[[[1.0, 3.0, 2.0]]]]), torch.tensor([[[[2.0]]]]))
        tensor([[[[1., 1., 0.]]]])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equation 1.
    """
    height, width = center.shape[2:]
    return (center - resize_antialiased(surround, (height, width))).abs()
