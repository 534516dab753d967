"""What stands out in an image: by brightness, by color, by the direction of its stripes."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from visattn.functional.numerics import at_least_float32, without_autocast
from visattn.functional.saliency.filters import (
    center_surround,
    gaussian_pyramid,
    orientation_energies,
    resized,
)

_FAINT = 1e-4  # a map below this everywhere holds rounding errors, which must not be blown up
_ALIKE = 1e-4  # of the largest value: what differs by less is equal but for rounding
_PEAK = 0.1  # of the largest value: what is lower is no rival


def singled_out(maps: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return each map scaled to 0 to 1, and held down the more, the more of it is equally strong.

    It is multiplied with (1 - m)², m being the mean of its local maxima other than the largest:
    a single peak stays, many alike vanish. Maxima are looked for among eight neighbors; those
    below a tenth of the largest do not count, and a flat top counts once.

    Args:
        maps: Numbers from 0; a map that stays below 0.0001 gives 0.

    Example:
        >>> singled_out(torch.tensor([[[[4.0, 0.0, 2.0, 0.0, 0.0]]]]))
        tensor([[[[0.2500, 0.0000, 0.1250, 0.0000, 0.0000]]]])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.2, the operator N. Deviation: the paper does not say what a local
        maximum is, nor that low ones are left out.
    """
    largest = maps.amax((2, 3), keepdim=True)
    scaled = torch.where(largest > _FAINT, maps / largest.clamp_min(_FAINT), 0.0)
    shares = _peaks(scaled)
    rivals = shares.sum((2, 3), keepdim=True) - 1
    total = (shares * scaled).sum((2, 3), keepdim=True) - 1
    mean = torch.where(rivals > 0.2, total / rivals.clamp_min(0.2), 0.0).clamp(0, 1)
    return scaled * (1 - mean).square()


def _peaks(scaled: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return 1 where a local maximum is; of a flat one each corner has its share, one in all."""
    highest = max_pool2d(scaled, 3, stride=1, padding=1)
    tops = ((scaled >= highest - _ALIKE) & (scaled > _PEAK)).to(scaled.dtype)
    around = pad(tops, (1, 1, 1, 1))
    rows = max_pool2d(around, (1, 3), stride=1)
    # A top that goes on both upwards and downwards, or to both sides, is no corner.
    vertical = 2 - rows[:, :, :-2] - rows[:, :, 2:]
    sideways = 2 - around[:, :, 1:-1, :-2] - around[:, :, 1:-1, 2:]
    return tops * vertical * sideways / 4


def opponents(images: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 y x"]:
    """Return brightness, how much redder than green a place is, and how much bluer than yellow.

    Colors are relative to the brightness, and 0 where that is at most a tenth of the image's
    largest: there the eye sees no hue.

    Args:
        images: Red, green and blue, 0 to 1.

    Example:
        >>> opponents(torch.tensor([0.6, 0.0, 0.0]).view(1, 3, 1, 1)).flatten()
        tensor([0.2000, 3.0000, 0.0000])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1.
    """
    bright = images.mean(1, keepdim=True)
    seen = bright > 0.1 * bright.amax((2, 3), keepdim=True)
    tiny = torch.finfo(images.dtype).tiny
    hues = torch.where(seen, images / bright.clamp_min(tiny), 0.0)
    r, g, b = hues.unbind(1)
    red = (r - (g + b) / 2).clamp_min(0)
    green = (g - (r + b) / 2).clamp_min(0)
    blue = (b - (r + g) / 2).clamp_min(0)
    yellow = ((r + g) / 2 - (r - g).abs() / 2 - b).clamp_min(0)
    return torch.stack((bright[:, 0], red - green, blue - yellow), 1)


def conspicuity_maps(images: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 h w"]:
    """Return how far each place stands out by its brightness, its color and its stripes, 0 to 1.

    Each map is on a coarse grid: a sixteenth of the image's sides, and down to a quarter for
    images with less than 256 pixels on the shorter one, for which all levels move up by as many.
    Levels that such an image has not are left out.

    Args:
        images: Red, green and blue, 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 3, 64, 48)
        >>> dot[:, 0, 40, 8] = 1.0
        >>> maps = conspicuity_maps(dot)
        >>> maps.shape, [divmod(int(of.argmax()), 12) for of in maps[0, :2]]
        (torch.Size([1, 3, 16, 12]), [(10, 2), (10, 2)])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equations 1 to 7. Deviation: equations 2 and 3 as printed add the colors of
        center and surround; here their difference is taken, as the text there has it.
    """
    height, width = images.shape[2:]
    finest, pairs = _scales(height, width)
    levels = gaussian_pyramid(opponents(images), max(finest + 2, *sum(pairs, (0, 0))) + 1)
    grid = (levels[finest + 2].shape[2], levels[finest + 2].shape[3])
    features = {
        level: torch.cat((levels[level], orientation_energies(levels[level][:, 0])), 1)
        for level in {level for pair in pairs for level in pair}
    }
    total = images.new_zeros(len(images), 7, *grid)
    for center, surround in pairs:
        differing = center_surround(features[center], features[surround])
        total = total + resized(singled_out(differing), grid)
    stripes = singled_out(total[:, 3:]).sum(1)
    return singled_out(torch.stack((total[:, 0], total[:, 1] + total[:, 2], stripes), 1))


def _scales(height: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the finest level of a center, and which levels are compared: center and surround."""
    finest = min(2, max(0, min(height, width).bit_length() - 7))
    last = (max(height, width) - 1).bit_length()  # from here on there is one place
    pairs = {
        (center, min(center + apart, last))
        for center in range(finest, min(finest + 3, last))
        for apart in (3, 4)
    }
    return finest, sorted(pairs)


def saliency(images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return how far each place stands out from the image, 0 to 1, at least in float32.

    It is the mean of what stands out by brightness, by color (red against green, blue against
    yellow) and by the direction of stripes, each compared with its surroundings at six pairs of
    scales, and each held down where many places stand out alike. Nothing is learned. An image does
    not depend on the others of its batch; a constant one gives 0; a mirrored one gives the map
    mirrored. Any size will do, yet below some 16 pixels a side there is little to compare.

    Args:
        images: Red, green and blue, or one channel for gray images; 0 to 1.

    Raises:
        ValueError: If there are neither one nor three channels, or a value is not in 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 1, 64, 64)
        >>> dot[:, :, 40, 21] = 1.0
        >>> places = saliency(dot)
        >>> places.shape, divmod(int(places.argmax()), 64)
        (torch.Size([1, 64, 64]), (41, 21))

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equation 8; the deviations are noted at `conspicuity_maps`, `singled_out`,
        `orientation_energies` and `gaussian_pyramid`.
    """
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 channel or 3, got {images.shape[1]}")
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError(
            "images must hold numbers from 0 to 1, and some lie outside or are not numbers; "
            "hand over pixels / 255, before they are normalized"
        )
    height, width = images.shape[2:]
    colors = at_least_float32(images).expand(-1, 3, -1, -1)
    with without_autocast(images.device):
        mean = conspicuity_maps(colors).mean(1, keepdim=True)
        return resized(mean, (height, width))[:, 0]


def salient_paths(
    saliency: Float[Tensor, "b y x"], glimpses: int, radius: float | None = None
) -> Float[Tensor, "b t 2"]:
    """Return the path of an eye that goes to the strongest place, then to the next, and so on.

    A place is (x, y), from (-1, -1) at the top left corner of the image to (1, 1) at its bottom
    right one, and lies in the middle of a pixel. Once seen, a disc around it draws the eye no more,
    until all of the image was seen and it begins anew. Of equal places the one nearest to the
    middle is first, so that without any saliency the eye begins there.

    Args:
        saliency: How far each place stands out.
        glimpses: Places in a path.
        radius: Of the disc, in pixels; a sixth of the shorter side if None.

    Raises:
        ValueError: If glimpses are below 1, radius below 0, or the saliency is not finite.

    Example:
        >>> salient_paths(torch.tensor([[[0.0, 0.2, 0.0, 0.9, 0.8]]]), 2, radius=1.0)
        tensor([[[ 0.4000,  0.0000],
                 [-0.4000,  0.0000]]])

    Source:
        Koch and Ullman 1985, "Shifts in selective visual attention"; Itti, Koch and Niebur 1998,
        section 2.2, for the disc. Deviation: the strongest place is taken at once instead of
        through neurons that race for it, and near places are not preferred.
    """
    height, width = saliency.shape[1:]
    reach = min(height, width) / 6 if radius is None else radius
    if glimpses < 1 or not reach >= 0:
        raise ValueError(
            f"glimpses must be at least 1, radius at least 0; got {glimpses=}, {radius=}"
        )
    if not bool(saliency.isfinite().all()):
        raise ValueError("saliency must be finite, and some of it is not; was the image?")
    across = torch.arange(width, device=saliency.device)
    down = torch.arange(height, device=saliency.device)[:, None]
    aside = ((2 * across + 1 - width).square() + (2 * down + 1 - height).square()).flatten()
    free = torch.ones_like(saliency, dtype=torch.bool)
    path: list[Tensor] = []
    for _ in range(glimpses):
        free = free | ~free.any(2, keepdim=True).any(1, keepdim=True)
        place = _strongest(saliency, free, aside)
        y, x = place // width, place % width
        path.append(torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1))
        apart = (across - x[:, None, None]).square() + (down - y[:, None, None]).square()
        free = free & (apart > reach**2)
    return torch.stack(path, 1).to(saliency.dtype)


def _strongest(
    saliency: Float[Tensor, "b y x"], free: Bool[Tensor, "b y x"], aside: Tensor
) -> Tensor:
    """Return the index of the strongest free place of each image, the least aside of equals."""
    left = torch.where(free, saliency, -torch.inf).flatten(1)
    strongest = left == left.amax(1, keepdim=True)
    return torch.where(strongest, aside, aside.max() + 1).argmin(1)
