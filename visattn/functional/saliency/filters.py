"""How strongly an image is striped, in each of several directions."""

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
    """Return how strongly the image is striped at each place, in each direction.

    That is the length of the pair of an even and an odd response of `gabor_pairs`, so that it does
    not matter whether a place lies on a stripe or beside it. Beyond its edge the image goes on as
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


def resized(x: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b c h w"]:
    """Return the features on a grid of another size, edge on edge.

    Finer grids are interpolated. On coarser ones a place is the weighted mean of all that lies up
    to one coarse place away from its middle. A constant stays constant, and what is mirrored before
    is mirrored after, whatever the sizes.

    Args:
        x: Features.
        size: Height and width, each at least 1.

    Example:
        >>> import torch
        >>> resized(torch.tensor([[[[0.0, 8.0, 8.0, 0.0]]]]), (1, 2))
        tensor([[[[4.5714, 4.5714]]]])
    """
    # torch's interpolate with antialias is wrong on grids of one column (2.15)
    down, across = (_tents(x.shape[axis], size[axis - 2]).to(x) for axis in (2, 3))
    return down @ (x @ across.T)


def _tents(side: int, count: int) -> Float[Tensor, "n m"]:
    """Return the weight of each place of a row of `side` for each of a row of `count`."""
    step = side / count
    middles = (torch.arange(count, dtype=torch.float64)[:, None] + 0.5) * step
    apart = (torch.arange(side, dtype=torch.float64) + 0.5 - middles).abs()
    weights = (1 - apart / max(step, 1.0)).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)


def gaussian_pyramid(x: Float[Tensor, "b c y x"], levels: int) -> tuple[Tensor, ...]:
    """Return the features themselves and then, level by level, smoothed and at half the size.

    Level l has the height and width of x divided by 2^l, rounded up, so that there is no end to
    the levels: one place stays one place.

    Args:
        x: Features, which become level 0.
        levels: How many there shall be, level 0 included.

    Raises:
        ValueError: If levels are below 1.

    Example:
        >>> import torch
        >>> [tuple(level.shape[2:]) for level in gaussian_pyramid(torch.zeros(1, 3, 5, 7), 4)]
        [(5, 7), (3, 4), (2, 2), (1, 1)]

    Source:
        Burt and Adelson 1983, "The Laplacian Pyramid as a Compact Image Code", equation 1.
        Deviation: the weights are the binomial (1, 3, 3, 1)/8 instead of five around a place, so
        that levels lie edge on edge; where a side is odd, the triangle of that width; at the
        border the weights within the image are scaled to sum to 1.
    """
    if levels < 1:
        raise ValueError(f"a pyramid has at least 1 level, got levels={levels}")
    found = [x]
    for _ in range(levels - 1):
        height, width = found[-1].shape[2:]
        found.append(resized(found[-1], ((height + 1) // 2, (width + 1) // 2)))
    return tuple(found)


def center_surround(
    center: Float[Tensor, "b c y x"], surround: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b c y x"]:
    """Return how far each place differs from its surroundings, whether it is more or less.

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
    return (center - resized(surround, (height, width))).abs()
