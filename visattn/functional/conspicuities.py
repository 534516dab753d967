"""What stands out in a picture: by brightness, by colour, by the direction of its stripes."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from visattn.functional.gabors import orientation_energies
from visattn.functional.gaussian_pyramids import centre_surround, gaussian_pyramid, resized

_FAINT = 1e-4  # a map below this everywhere holds rounding errors, which must not be blown up
_ALIKE = 1e-4  # of the largest value: what differs by less is equal but for rounding
_PEAK = 0.1  # of the largest value: what is lower is no rival


def singled_out(maps: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return each map scaled to 0 to 1, and held down the more, the more of it is equally strong.

    It is multiplied with (1 - m)², m being the mean of its local maxima other than the largest:
    a single peak stays, many alike vanish. Maxima are looked for among eight neighbours; those
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


def opponents(pictures: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 y x"]:
    """Return brightness, how much redder than green a place is, and how much bluer than yellow.

    Colours are relative to the brightness, and 0 where that is at most a tenth of the picture's
    largest: there the eye sees no hue.

    Args:
        pictures: Red, green and blue, 0 to 1.

    Example:
        >>> opponents(torch.tensor([0.6, 0.0, 0.0]).view(1, 3, 1, 1)).flatten()
        tensor([0.2000, 3.0000, 0.0000])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", section 2.1.
    """
    bright = pictures.mean(1, keepdim=True)
    seen = bright > 0.1 * bright.amax((2, 3), keepdim=True)
    tiny = torch.finfo(pictures.dtype).tiny
    hues = torch.where(seen, pictures / bright.clamp_min(tiny), 0.0)
    r, g, b = hues.unbind(1)
    red = (r - (g + b) / 2).clamp_min(0)
    green = (g - (r + b) / 2).clamp_min(0)
    blue = (b - (r + g) / 2).clamp_min(0)
    yellow = ((r + g) / 2 - (r - g).abs() / 2 - b).clamp_min(0)
    return torch.stack((bright[:, 0], red - green, blue - yellow), 1)


def conspicuity_maps(pictures: Float[Tensor, "b 3 y x"]) -> Float[Tensor, "b 3 h w"]:
    """Return how far each place stands out by its brightness, its colour and its stripes, 0 to 1.

    Each map is on a coarse grid: a sixteenth of the picture's sides, and down to a quarter for
    pictures with less than 256 pixels on the shorter one, for which all levels move up by as many.
    Levels that such a picture has not are left out.

    Args:
        pictures: Red, green and blue, 0 to 1.

    Example:
        >>> dot = torch.zeros(1, 3, 64, 48)
        >>> dot[:, 0, 40, 8] = 1.0
        >>> maps = conspicuity_maps(dot)
        >>> maps.shape, [divmod(int(of.argmax()), 12) for of in maps[0, :2]]
        (torch.Size([1, 3, 16, 12]), [(10, 2), (10, 2)])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equations 1 to 7. Deviation: equations 2 and 3 as printed add the colours of
        centre and surround; here their difference is taken, as the text there has it.
    """
    height, width = pictures.shape[2:]
    finest, pairs = _scales(height, width)
    levels = gaussian_pyramid(opponents(pictures), max(finest + 2, *sum(pairs, (0, 0))) + 1)
    grid = (levels[finest + 2].shape[2], levels[finest + 2].shape[3])
    features = {
        level: torch.cat((levels[level], orientation_energies(levels[level][:, 0])), 1)
        for level in {level for pair in pairs for level in pair}
    }
    total = pictures.new_zeros(len(pictures), 7, *grid)
    for centre, surround in pairs:
        differing = centre_surround(features[centre], features[surround])
        total = total + resized(singled_out(differing), grid)
    stripes = singled_out(total[:, 3:]).sum(1)
    return singled_out(torch.stack((total[:, 0], total[:, 1] + total[:, 2], stripes), 1))


def _scales(height: int, width: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the finest level of a centre, and which levels are compared: centre and surround."""
    finest = min(2, max(0, min(height, width).bit_length() - 7))
    last = (max(height, width) - 1).bit_length()  # from here on there is one place
    pairs = {
        (centre, min(centre + apart, last))
        for centre in range(finest, min(finest + 3, last))
        for apart in (3, 4)
    }
    return finest, sorted(pairs)
