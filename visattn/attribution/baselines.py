"""Maps that know nothing of the model: what a method must beat."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

_RANDOM_GRID = (7, 7)
_SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))


def random_maps(images: Float[Tensor, "b c y x"], seeds: Sequence[int]) -> Float[Tensor, "b gy gx"]:
    """Return numbers between 0 and 1, drawn for each cell of a grid of 7 x 7.

    The grid is that of the last features of most CNNs, so that these maps are as smooth as theirs
    when they are enlarged.

    Args:
        images: Say how many maps and where they are to lie.
        seeds: One for each image: its map does not depend on the batch it is in.

    Example:
        >>> alone = random_maps(torch.zeros(1, 3, 8, 8), [5])
        >>> torch.equal(random_maps(torch.zeros(2, 3, 8, 8), [4, 5])[1:], alone)
        True
    """
    drawn = [torch.rand(_RANDOM_GRID, generator=_seeded(seed)) for seed in seeds]
    return torch.stack(drawn).to(images)


def center_maps(
    images: Float[Tensor, "b c y x"],
    seeds: Sequence[int] = (),  # noqa: ARG001 (as of all baselines)
) -> Float[Tensor, "b y x"]:
    """Return a Gaussian in the middle of each image, a quarter of each side wide.

    People put what they photograph in the middle: this is what a map must beat that claims to
    know where the object is.

    Args:
        images: Say how many maps and of what size.
        seeds: Not used.

    Example:
        >>> center_maps(torch.zeros(1, 3, 1, 3))[0, 0]
        tensor([0.4111, 1.0000, 0.4111])
    """
    y, x = (_bell(side, images) for side in images.shape[2:])
    return (y[:, None] * x).expand(len(images), -1, -1).clone()


def edge_maps(
    images: Float[Tensor, "b c y x"],
    seeds: Sequence[int] = (),  # noqa: ARG001 (as of all baselines)
) -> Float[Tensor, "b y x"]:
    """Return how strong the edges of each image are, its channels averaged.

    A gradient map that looks convincing since it shows the image's outlines is no better.

    Args:
        images: As the network takes them.
        seeds: Not used.

    Example:
        >>> half = torch.zeros(1, 3, 3, 4)
        >>> half[..., 2:] = 1.0
        >>> edge_maps(half)[0, 1]
        tensor([0., 4., 4., 0.])

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 5.1, edge detector; here of Sobel.
    """
    gray = pad(images.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = images.new_tensor(_SOBEL)[None, None]
    both = conv2d(gray, torch.cat([across, across.mT]))
    return torch.linalg.vector_norm(both, dim=1)


BASELINES: dict[
    str, Callable[[Float[Tensor, "b c y x"], Sequence[int]], Float[Tensor, "b y x"]]
] = {"random": random_maps, "center": center_maps, "edges": edge_maps}
"""By name: of the network's input, and a seed for each image."""


def _bell(side: int, like: Tensor) -> Float[Tensor, " n"]:
    middle = (torch.arange(side, dtype=torch.float64) + 0.5) / side - 0.5
    return (-0.5 * (middle / 0.25).square()).exp().to(like)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
