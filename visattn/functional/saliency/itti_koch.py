"""Saliency model of Itti, Koch and Niebur: intensity, color and orientation contrast."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from visattn.functional.numerics import at_least_float32, without_autocast
from visattn.functional.saliency.filters import (
    center_surround,
    gabor_energy,
    gaussian_pyramid,
    resize_antialiased,
)

_MIN_MAXIMUM = 1e-4  # a map below this everywhere holds rounding errors only
_TIE_TOLERANCE = 1e-4  # relative to the maximum: smaller differences are rounding errors
_PEAK_THRESHOLD = 0.1  # relative to the maximum: lower local maxima are ignored


def normalize_peaks(maps: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Apply the normalization operator N(·): promote maps with few strong peaks.

    Each map is scaled to [0, 1] and multiplied by (1 - m)², where m is the mean of its local maxima
    other than the global one: a single peak stays, many equal peaks vanish. Local maxima are
    compared with eight neighbors; those below a tenth of the maximum are ignored, and a plateau
    counts once.

    Args:
        maps: Non-negative maps; a map below 0.0001 everywhere gives 0.

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
    rivals = shares.sum((2, 3), keepdim=True) - 1
    total = (shares * scaled).sum((2, 3), keepdim=True) - 1
    mean = torch.where(rivals > 0.2, total / rivals.clamp_min(0.2), 0.0).clamp(0, 1)
    return scaled * (1 - mean).square()


def _peaks(scaled: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return 1 at local maxima; the corners of a plateau share a total of 1."""
    highest = max_pool2d(scaled, 3, stride=1, padding=1)
    tops = ((scaled >= highest - _TIE_TOLERANCE) & (scaled > _PEAK_THRESHOLD)).to(scaled.dtype)
    around = pad(tops, (1, 1, 1, 1))
    rows = max_pool2d(around, (1, 3), stride=1)
    # A plateau pixel with neighbors above and below, or to both sides, is no corner.
    vertical = 2 - rows[:, :, :-2] - rows[:, :, 2:]
    sideways = 2 - around[:, :, 1:-1, :-2] - around[:, :, 1:-1, 2:]
    return tops * vertical * sideways / 4


def color_opponency(images: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 y x"]:
    """Return intensity, red-green opponency and blue-yellow opponency.

    Colors are divided by the intensity, and 0 where it is at most a tenth of the image maximum,
    since hue is not perceived there.

    Args:
        images: Red, green and blue, 0 to 1.

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

    The maps have a sixteenth of the image size, and up to a quarter for images with a shorter side
    below 256 pixels, for which all pyramid levels are finer. Levels that do not exist are skipped.

    Args:
        images: Red, green and blue, 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 3, 64, 48)
        >>> dot[:, 0, 40, 8] = 1.0
        >>> maps = conspicuity_maps(dot)
        >>> maps.shape, [divmod(int(part.argmax()), 12) for part in maps[0, :2]]
        (torch.Size([1, 3, 16, 12]), [(10, 2), (10, 2)])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equations 1 to 7. Deviation: equations 2 and 3 as printed add the colors of
        center and surround; here their difference is taken, as the text there has it.
    """
    height, width = images.shape[2:]
    finest, pairs = _scales(height, width)
    levels = gaussian_pyramid(color_opponency(images), max(finest + 2, *sum(pairs, (0, 0))) + 1)
    grid = (levels[finest + 2].shape[2], levels[finest + 2].shape[3])
    features = {
        level: torch.cat((levels[level], gabor_energy(levels[level][:, 0])), 1)
        for level in {level for pair in pairs for level in pair}
    }
    total = images.new_zeros(len(images), 7, *grid)
    for center, surround in pairs:
        contrast = center_surround(features[center], features[surround])
        total = total + resize_antialiased(normalize_peaks(contrast), grid)
    orientation = normalize_peaks(total[:, 3:]).sum(1)
    return normalize_peaks(torch.stack((total[:, 0], total[:, 1] + total[:, 2], orientation), 1))


def _scales(height: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the finest center level and the pairs of center and surround levels."""
    finest = min(2, max(0, min(height, width).bit_length() - 7))
    last = (max(height, width) - 1).bit_length()  # from this level on there is one pixel
    pairs = {
        (center, min(center + apart, last))
        for center in range(finest, min(finest + 3, last))
        for apart in (3, 4)
    }
    return finest, sorted(pairs)


def itti_koch_saliency(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return the saliency map of Itti, Koch and Niebur, 0 to 1, in float32 at least.

    The map is the mean of the conspicuity maps of intensity, color opponency and orientation,
    computed from center-surround differences at six pairs of scales. Nothing is learned. A constant
    image gives 0, and a flipped image the flipped map. Any size works, but below about 16 pixels
    there is little to compare.

    Args:
        images: Red, green and blue, or one channel for gray images; 0 to 1.

    Raises:
        ValueError: If there are neither one nor three channels, or a value is not in 0 to 1.

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
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 channel or 3, got {images.shape[1]}")
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError(
            "images must hold numbers from 0 to 1, got numbers outside or NaN; "
            "pass pixels / 255 without normalization"
        )
    height, width = images.shape[2:]
    colors = at_least_float32(images).expand(-1, 3, -1, -1)
    with without_autocast(images.device):
        mean = conspicuity_maps(colors).mean(1, keepdim=True)
        return resize_antialiased(mean, (height, width))[:, 0]


def saliency_scanpaths(
    saliency: Float[Tensor, "b y x"], num_glimpses: int, radius: float | None = None
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths that visit the most salient locations, with inhibition of return.

    A location is (x, y) at a pixel center, from (-1, -1) at the top left corner of the image to
    (1, 1) at the bottom right corner. A disc around each visited location is inhibited until the
    whole image was visited. Ties are broken towards the image center.

    Args:
        saliency: Saliency maps.
        num_glimpses: Locations per scanpath.
        radius: Radius of inhibition in pixels; a sixth of the shorter side if None.

    Raises:
        ValueError: If `num_glimpses` is below 1, `radius` below 0, or the saliency not finite.

    Example:
        >>> saliency_scanpaths(torch.tensor([[[0.0, 0.2, 0.0, 0.9, 0.8]]]), 2, radius=1.0)
        tensor([[[ 0.4000,  0.0000],
                 [-0.4000,  0.0000]]])

    Source:
        Koch and Ullman 1985, "Shifts in selective visual attention"; Itti, Koch and Niebur 1998,
        section 2.2, for the disc. Deviation: the maximum is computed directly instead of by a
        winner-take-all network, and nearby locations are not preferred.
    """
    height, width = saliency.shape[1:]
    reach = min(height, width) / 6 if radius is None else radius
    if num_glimpses < 1 or not reach >= 0:
        raise ValueError(
            f"num_glimpses must be at least 1, radius at least 0; got {num_glimpses=}, {radius=}"
        )
    if not bool(saliency.isfinite().all()):
        raise ValueError("saliency must be finite, got NaN or infinity; check the image")
    across = torch.arange(width, device=saliency.device)
    down = torch.arange(height, device=saliency.device)[:, None]
    eccentricity = ((2 * across + 1 - width).square() + (2 * down + 1 - height).square()).flatten()
    free = torch.ones_like(saliency, dtype=torch.bool)
    path: list[Tensor] = []
    for _ in range(num_glimpses):
        free = free | ~free.any(2, keepdim=True).any(1, keepdim=True)
        place = _argmax(saliency, free, eccentricity)
        y, x = place // width, place % width
        path.append(torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1))
        apart = (across - x[:, None, None]).square() + (down - y[:, None, None]).square()
        free = free & (apart > reach**2)
    return torch.stack(path, 1).to(saliency.dtype)


def _argmax(
    saliency: Float[Tensor, "b y x"], free: Bool[Tensor, "b y x"], eccentricity: Tensor
) -> Tensor:
    """Return the index of the free maximum of each image; ties go to the lowest eccentricity."""
    candidates = torch.where(free, saliency, -torch.inf).flatten(1)
    maximal = candidates == candidates.amax(1, keepdim=True)
    return torch.where(maximal, eccentricity, eccentricity.max() + 1).argmin(1)
