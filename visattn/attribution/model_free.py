"""Maps that do not depend on a model: bottom-up saliency, and baselines for evaluation."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

from visattn.attribution.perturbation import denormalize
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.functional.saliency.itti_koch import itti_koch_saliency
from visattn.functional.saliency.spectral_residual import spectral_residual
from visattn.recording.model_info import ExplainedModel

_RANDOM_GRID = (7, 7)
_SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))


@method("itti_koch", title="Itti–Koch", paper="Itti et al. 1998", needs="pixels", kind="saliency")
def itti_koch(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,  # noqa: ARG001 (signature of all methods)
) -> Float[Tensor, "b y x"]:
    """Itti-Koch saliency: center-surround contrast of intensity, color and orientation.

    Args:
        explained: Gives the normalization of the images.
        images: Normalized.
        target: Not used.

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis".
    """
    return itti_koch_saliency(denormalize(images, explained.info))


@method(
    "spectral_residual",
    title="Spectral residual",
    paper="Hou and Zhang 2007",
    needs="pixels",
    kind="saliency",
)
def spectral_residual_map(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,  # noqa: ARG001 (signature of all methods)
    *,
    grid_size: int = 64,
    sigma: float = 2.5,
) -> Float[Tensor, "b gy gx"]:
    """Spectral-residual saliency: deviations of the image from its smoothed log spectrum.

    Args:
        explained: Gives the normalization of the images.
        images: Normalized.
        target: Not used.
        grid_size: Cells along the shorter side of the map.
        sigma: Standard deviation of the Gaussian blur of the map, in cells.

    Raises:
        ValueError: If grid_size is below 1, or sigma is not positive.

    Source:
        Hou and Zhang 2007, "Saliency Detection: A Spectral Residual Approach".
    """
    colors = denormalize(images, explained.info)
    return spectral_residual(colors, grid_size=grid_size, sigma=sigma)


def random_maps(images: Float[Tensor, "b c y x"], seeds: Sequence[int]) -> Float[Tensor, "b gy gx"]:
    """Return uniform random maps on a grid of 7 x 7.

    This is the grid of the last features of most CNNs, so that the maps are as smooth as class
    activation maps when they are resized.

    Args:
        images: Give batch size, dtype and device.
        seeds: One for each image, so that its map does not depend on its batch.

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

    Args:
        images: Give batch size and size of the maps.
        seeds: Not used.

    Example:
        >>> center_maps(torch.zeros(1, 3, 1, 3))[0, 0]
        tensor([0.4111, 1.0000, 0.4111])
    """
    y, x = (_centered_gaussian(side, images) for side in images.shape[2:])
    return (y[:, None] * x).expand(len(images), -1, -1).clone()


def edge_maps(
    images: Float[Tensor, "b c y x"],
    seeds: Sequence[int] = (),  # noqa: ARG001 (signature of all baselines)
) -> Float[Tensor, "b y x"]:
    """Return the edge strength (Sobel) of each image, averaged over channels.

    A gradient map that convinces only because it shows the edges of the image does not beat it.

    Args:
        images: Normalized.
        seeds: Not used.

    Example:
        >>> step = torch.zeros(1, 3, 3, 4)
        >>> step[..., 2:] = 1.0
        >>> edge_maps(step)[0, 1]
        tensor([0., 4., 4., 0.])

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 5.1, edge detector; here with Sobel filters.
    """
    gray = pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    horizontal = images.new_tensor(_SOBEL)[None, None]
    gradients = conv2d(gray, torch.cat([horizontal, horizontal.mT]))
    return torch.linalg.vector_norm(gradients, dim=1)


BASELINES: dict[
    str, Callable[[Float[Tensor, "b c y x"], Sequence[int]], Float[Tensor, "b y x"]]
] = {"random": random_maps, "center": center_maps, "edges": edge_maps}
"""Functions from normalized images, and a seed for each, to baseline maps, by name."""


def _centered_gaussian(side: int, like: Tensor) -> Float[Tensor, " n"]:
    positions = (torch.arange(side, dtype=torch.float64) + 0.5) / side - 0.5
    return (-0.5 * (positions / 0.25).square()).exp().to(like)
