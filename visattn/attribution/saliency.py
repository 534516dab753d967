"""Saliency without a model: Itti-Koch and its filters, and the baselines of `score maps`."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

from visattn.attribution.perturbation import denormalize
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.functional.numerics import at_least_float32, without_autocast
from visattn.recording.subject import Subject

_ORIENTATIONS, _WAVELENGTH, _SIGMA, _RADIUS = 4, 4.0, 1.25, 4  # in pixels


def gabor_filters() -> Float[Tensor, "o 2 k k"]:
    """Return quadrature pairs (even, odd) of Gabor filters, in float64.

    The wave of orientation o travels along the angle o · 45°, measured from right to bottom. The
    energy (root of the sum of squares) of a pair is 0 for a constant image and 1 for its own wave
    with amplitude 1.

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
    steps = torch.arange(-_RADIUS, _RADIUS + 1, dtype=torch.float64)
    angles = torch.arange(_ORIENTATIONS, dtype=torch.float64) * (math.pi / _ORIENTATIONS)
    along = angles.cos()[:, None, None] * steps + angles.sin()[:, None, None] * steps[:, None]
    phase = along * (2 * math.pi / _WAVELENGTH)
    envelope = (-(steps.square() + steps.square()[:, None]) / (2 * _SIGMA**2)).exp()
    even = envelope * phase.cos()
    odd = envelope * phase.sin()
    even = even - envelope * even.sum((1, 2), keepdim=True) / envelope.sum()
    even = even / (even * phase.cos()).sum((1, 2), keepdim=True)
    return torch.stack((even, odd / (odd * phase.sin()).sum((1, 2), keepdim=True)), 1)


def gabor_energy(x: Float[Tensor, "b y x"]) -> Float[Tensor, "b o y x"]:
    """Return the Gabor energy of each pixel per orientation; orientation 0 is vertical stripes.

    The energy is the norm of the even and odd responses of `gabor_filters`, which does not depend
    on the phase. Border pixels are replicated.

    Example:
        >>> vertical = (torch.arange(31) * (math.pi / 2)).cos().expand(1, 31, 31)
        >>> [round(float(energy), 2) for energy in gabor_energy(vertical)[0, :, 15, 15]]
        [1.0, 0.32, 0.0, 0.32]

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1. Deviation: Gabor pairs on a Gaussian pyramid instead of the pyramid
        of Greenspan et al. 1994, with its wavelength of four pixels.
    """
    pairs = gabor_filters().to(x)
    wide = pad(x[:, None], (_RADIUS,) * 4, mode="replicate")
    even, odd = conv2d(wide, pairs.transpose(0, 1).flatten(0, 1)[:, None]).chunk(2, 1)
    # the gradient of a root is infinite at 0
    return (even.square() + odd.square()).clamp_min(torch.finfo(x.dtype).tiny).sqrt()


def resize_antialiased(
    x: Float[Tensor, "b c y x"], size: tuple[int, int]
) -> Float[Tensor, "b c h w"]:
    """Resize features with a triangle filter, aligned at the outer edges.

    Upsampling is bilinear; the filter for downsampling extends one output pixel to each side.
    Constants stay constant, and resizing commutes with flips.

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
    is possible. `num_levels` counts level 0.

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
    pyramid = [x]
    for _ in range(num_levels - 1):
        height, width = pyramid[-1].shape[2:]
        pyramid.append(resize_antialiased(pyramid[-1], ((height + 1) // 2, (width + 1) // 2)))
    return tuple(pyramid)


_MIN_MAXIMUM = 1e-4  # a map with a lower maximum is rounding error
_TIE_TOLERANCE = 1e-4  # relative to the maximum: smaller differences are rounding errors
_PEAK_THRESHOLD = 0.1  # relative to the maximum: smaller local maxima are ignored


def normalize_peaks(maps: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Apply the normalization operator N(·): promote maps with few strong peaks.

    Each map is scaled to [0, 1] and multiplied by (1 - m)², where m is the mean of its local maxima
    other than the global one: a single peak stays, many equal peaks vanish. Local maxima are
    compared with eight neighbors; those below a tenth of the maximum are ignored, and a plateau
    counts once. Maps must be non-negative; a maximum below 0.0001 gives a map of zeros.

    Example:
        >>> normalize_peaks(torch.tensor([[[[4.0, 0.0, 2.0, 0.0, 0.0]]]]))
        tensor([[[[0.2500, 0.0000, 0.1250, 0.0000, 0.0000]]]])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.2, the operator N. Deviation: the paper defines neither local
        maxima nor a threshold for them.
    """
    largest = maps.amax((2, 3), keepdim=True)
    scaled = torch.where(largest > _MIN_MAXIMUM, maps / largest.clamp_min(_MIN_MAXIMUM), 0.0)
    shares = _peaks(scaled)
    # without the global maximum, whose value and share are 1
    rivals = shares.sum((2, 3), keepdim=True) - 1
    total = (shares * scaled).sum((2, 3), keepdim=True) - 1
    # The smallest share of a peak is 1/4, so that less than 0.2 is rounding error and no rival.
    mean = torch.where(rivals > 0.2, total / rivals.clamp_min(0.2), 0.0).clamp(0, 1)
    return scaled * (1 - mean).square()


def _peaks(scaled: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return 1 at local maxima; the corners of a plateau share a total of 1."""
    highest = max_pool2d(scaled, 3, stride=1, padding=1)
    tops = ((scaled >= highest - _TIE_TOLERANCE) & (scaled > _PEAK_THRESHOLD)).to(scaled.dtype)
    around = pad(tops, (1, 1, 1, 1))
    rows = max_pool2d(around, (1, 3), stride=1)
    # A plateau pixel with neighbors above and below, or on both sides, is not a corner.
    vertical = 2 - rows[:, :, :-2] - rows[:, :, 2:]
    sideways = 2 - around[:, :, 1:-1, :-2] - around[:, :, 1:-1, 2:]
    return tops * vertical * sideways / 4


def color_opponency(images: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 y x"]:
    """Return intensity, red-green opponency and blue-yellow opponency.

    Colors are divided by the intensity; where it is at most a tenth of the image's maximum, hue is
    hardly perceived and they are set to 0. Images are RGB, 0 to 1.

    Example:
        >>> color_opponency(torch.tensor([0.6, 0.0, 0.0]).view(1, 3, 1, 1)).flatten()
        tensor([0.2000, 3.0000, 0.0000])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1.
    """
    intensity = images.mean(1, keepdim=True)
    visible = intensity > 0.1 * intensity.amax((2, 3), keepdim=True)
    tiny = torch.finfo(images.dtype).tiny
    hues = torch.where(visible, images / intensity.clamp_min(tiny), 0.0)
    r, g, b = hues.unbind(1)
    red = (r - (g + b) / 2).clamp_min(0)
    green = (g - (r + b) / 2).clamp_min(0)
    blue = (b - (r + g) / 2).clamp_min(0)
    yellow = ((r + g) / 2 - (r - g).abs() / 2 - b).clamp_min(0)
    return torch.stack((intensity[:, 0], red - green, blue - yellow), 1)


def conspicuity_maps(images: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 h w"]:
    """Return the conspicuity maps of intensity, color and orientation, 0 to 1.

    Maps have 1/16 of the image size, or up to 1/4 if the shorter side is below 256 pixels, where
    finer pyramid levels are used. Levels that do not exist are skipped. Images are RGB, 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 3, 64, 48)
        >>> dot[:, 0, 40, 8] = 1.0
        >>> maps = conspicuity_maps(dot)
        >>> maps.shape, [divmod(int(part.argmax()), 12) for part in maps[0, :2]]
        (torch.Size([1, 3, 16, 12]), [(10, 2), (10, 2)])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equations 1 to 7. Deviation: equations 2 and 3 as printed add the colors of
        center and surround; here they are subtracted, as the paper's text says.
    """
    height, width = images.shape[2:]
    finest, pairs = _scales(height, width)
    levels = gaussian_pyramid(color_opponency(images), max(finest + 2, *sum(pairs, (0, 0))) + 1)
    grid = (levels[finest + 2].shape[2], levels[finest + 2].shape[3])
    features = {
        level: torch.cat((levels[level], gabor_energy(levels[level][:, 0])), 1)
        for level in {level for pair in pairs for level in pair}
    }
    total = images.new_zeros(len(images), 7, *grid)  # intensity, two colors, four orientations
    for center, surround in pairs:
        height, width = features[center].shape[2:]
        blurred = resize_antialiased(features[surround], (height, width))
        contrast = (features[center] - blurred).abs()
        total = total + resize_antialiased(normalize_peaks(contrast), grid)
    orientation = normalize_peaks(total[:, 3:]).sum(1)
    return normalize_peaks(torch.stack((total[:, 0], total[:, 1] + total[:, 2], orientation), 1))


def _scales(height: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the finest center level and the pairs of center and surround levels."""
    finest = min(2, max(0, min(height, width).bit_length() - 7))  # 2 from 256 pixels on, 1 from 128
    last = (max(height, width) - 1).bit_length()  # the first level of a single pixel
    pairs = {
        (center, min(center + apart, last))
        for center in range(finest, min(finest + 3, last))
        for apart in (3, 4)
    }
    return finest, sorted(pairs)


def itti_koch_saliency(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return the saliency map of Itti, Koch and Niebur, 0 to 1, in float32 at least.

    The map is the mean of the conspicuity maps of intensity, color opponency and orientation,
    computed from center-surround differences at six pairs of scales. A constant image gives 0, and
    a flipped image the flipped map. Any size works, but images below about 16 pixels have too few
    scales to compare. Images are RGB or gray, 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 1, 64, 64)
        >>> dot[:, :, 40, 21] = 1.0
        >>> saliency = itti_koch_saliency(dot)
        >>> saliency.shape, divmod(int(saliency.argmax()), 64)
        (torch.Size([1, 64, 64]), (41, 21))

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equation 8; the deviations are noted at `conspicuity_maps`, `normalize_peaks`,
        `gabor_energy` and `gaussian_pyramid`.
    """
    height, width = images.shape[2:]
    colors = at_least_float32(images).expand(-1, 3, -1, -1)
    with without_autocast(images.device):
        mean = conspicuity_maps(colors).mean(1, keepdim=True)
        return resize_antialiased(mean, (height, width))[:, 0]


def saliency_scanpaths(
    saliency: Float[Tensor, "b y x"], num_glimpses: int
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths that visit the most salient locations, with inhibition of return.

    A location is (x, y) at a pixel center, from (-1, -1) at the top left corner of the image to
    (1, 1) at the bottom right corner. A disc around each visited location, with a radius of 1/6 of
    the shorter side, is inhibited until the whole image has been visited. Ties go to the location
    closest to the image center.

    Example:
        >>> saliency_scanpaths(torch.tensor([[[0.0, 0.2, 0.0, 0.9, 0.8]]]), 2)
        tensor([[[0.4000, 0.0000],
                 [0.8000, 0.0000]]])

    Source:
        Koch and Ullman 1985, "Shifts in selective visual attention"; Itti, Koch and Niebur 1998,
        section 2.2, for the disc. Deviation: the maximum is computed directly instead of by a
        winner-take-all network, and nearby locations are not preferred.
    """
    height, width = saliency.shape[1:]
    reach = min(height, width) / 6
    across = torch.arange(width, device=saliency.device)
    down = torch.arange(height, device=saliency.device)[:, None]
    eccentricity = (2 * across + 1 - width).square() + (2 * down + 1 - height).square()
    from_center = eccentricity.flatten().argsort(stable=True)
    free = torch.ones_like(saliency, dtype=torch.bool)
    path: list[Tensor] = []
    for _ in range(num_glimpses):
        free = free | ~free.any(2, keepdim=True).any(1, keepdim=True)
        candidates = torch.where(free, saliency, -torch.inf).flatten(1)[:, from_center]
        pixel = from_center[candidates.argmax(1)]  # the first of several maxima
        y = pixel // width
        x = pixel % width
        path.append(torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1))
        apart = (across - x[:, None, None]).square() + (down - y[:, None, None]).square()
        free = free & (apart > reach**2)
    return torch.stack(path, 1).to(saliency.dtype)


_RANDOM_GRID = (7, 7)


@method(
    "itti_koch",
    title="Itti–Koch",
    paper="Itti et al. 1998",
    needs="pixels",
    kind="saliency",
    check=lambda subject, _: (
        "" if len(subject.info.mean) in (1, 3) else "it needs gray or RGB images"
    ),
)
def itti_koch(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,  # noqa: ARG001 (signature of all methods)
) -> Float[Tensor, "b y x"]:
    """Itti-Koch saliency: center-surround contrast of intensity, color and orientation.

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis".
    """
    return itti_koch_saliency(denormalize(images, subject.info))


def random_maps(images: Float[Tensor, "b c y x"], seeds: Sequence[int]) -> Float[Tensor, "b gy gx"]:
    """Return uniform random maps on a 7 x 7 grid, that of the last features of most CNNs.

    After resizing they are as smooth as class activation maps. Each map has its own seed, so that
    it does not depend on the rest of the batch.

    Example:
        >>> single = random_maps(torch.zeros(1, 3, 8, 8), [5])
        >>> torch.equal(random_maps(torch.zeros(2, 3, 8, 8), [4, 5])[1:], single)
        True
    """
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    maps = [torch.rand(_RANDOM_GRID, generator=generator) for generator in generators]
    return torch.stack(maps).to(images)


def center_maps(
    images: Float[Tensor, "b c y x"],
    seeds: Sequence[int] = (),  # noqa: ARG001 (signature of all baselines)
) -> Float[Tensor, "b y x"]:
    """Return a Gaussian at the center of each image, with a standard deviation of 1/4 of each side.

    Photographers center their subject (center bias): a map that claims to localize the object must
    beat this baseline.

    Example:
        >>> center_maps(torch.zeros(1, 3, 1, 3))[0, 0]
        tensor([0.4111, 1.0000, 0.4111])
    """
    y, x = ((torch.arange(side).double() + 0.5) / side - 0.5 for side in images.shape[2:])
    gaussian = (-(y[:, None].square() + x.square()) / (2 * 0.25**2)).exp()
    return gaussian.to(images).expand(len(images), -1, -1).clone()


BASELINES: dict[
    str, Callable[[Float[Tensor, "b c y x"], Sequence[int]], Float[Tensor, "b y x"]]
] = {"random": random_maps, "center": center_maps}
"""Baseline maps by name: functions of normalized images and a seed for each."""
