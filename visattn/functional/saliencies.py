"""Where an eye is drawn before it knows what it sees, and the path that follows from it."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.conspicuities import conspicuity_maps
from visattn.functional.gaussian_pyramids import resized
from visattn.functional.precisions import at_least_float32, without_autocast


def saliency(pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return how far each place stands out from the picture, 0 to 1, at least in float32.

    It is the mean of what stands out by brightness, by colour (red against green, blue against
    yellow) and by the direction of stripes, each compared with its surroundings at six pairs of
    scales, and each held down where many places stand out alike. Nothing is learned. A picture does
    not depend on the others of its batch; a constant one gives 0; a mirrored one gives the map
    mirrored. Any size will do, yet below some 16 pixels a side there is little to compare.

    Args:
        pictures: Red, green and blue, or one channel for grey pictures; 0 to 1.

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
    if pictures.shape[1] not in (1, 3):
        raise ValueError(f"pictures must have 1 channel or 3, got {pictures.shape[1]}")
    if not bool(((pictures >= 0) & (pictures <= 1)).all()):
        raise ValueError(
            "pictures must hold numbers from 0 to 1, and some lie outside or are not numbers; "
            "hand over pixels / 255, before they are normalised"
        )
    height, width = pictures.shape[2:]
    colours = at_least_float32(pictures).expand(-1, 3, -1, -1)
    with without_autocast(pictures.device):
        mean = conspicuity_maps(colours).mean(1, keepdim=True)
        return resized(mean, (height, width))[:, 0]


def salient_paths(
    saliency: Float[Tensor, "b y x"], glimpses: int, radius: float | None = None
) -> Float[Tensor, "b t 2"]:
    """Return the path of an eye that goes to the strongest place, then to the next, and so on.

    A place is (x, y), from (-1, -1) at the top left corner of the picture to (1, 1) at its bottom
    right one, and lies in the middle of a pixel. Once seen, a disc around it draws the eye no more,
    until all of the picture was seen and it begins anew. Of equal places the one nearest to the
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
        raise ValueError("saliency must be finite, and some of it is not; was the picture?")
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
    """Return the index of the strongest free place of each picture, the least aside of equals."""
    left = torch.where(free, saliency, -torch.inf).flatten(1)
    strongest = left == left.amax(1, keepdim=True)
    return torch.where(strongest, aside, aside.max() + 1).argmin(1)
