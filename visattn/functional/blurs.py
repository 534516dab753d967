"""Pictures out of focus."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad


def gaussian_blur(pictures: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Return pictures blurred by a Gaussian; beyond the rim the pixels at the rim go on.

    Args:
        pictures: Of any range, which the result does not leave.
        sigma: Its spread in pixels; the kernel ends after three of these.

    Raises:
        ValueError: If sigma is not above 0.

    Example:
        >>> edge = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).expand(1, 1, 3, 6)
        >>> gaussian_blur(edge, 0.8)[0, 0, 1]
        tensor([4.4074e-04, 2.2351e-02, 2.5066e-01, 7.4934e-01, 9.7765e-01, 9.9956e-01])
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0 pixels, got {sigma}")
    reach = max(math.ceil(3 * sigma), 1)
    steps = torch.arange(-reach, reach + 1, device=pictures.device, dtype=torch.float64)
    kernel = (-0.5 * (steps / sigma).square()).exp()
    kernel = (kernel / kernel.sum()).to(pictures)
    rows = pictures.flatten(0, 1)[:, None]
    rows = conv2d(pad(rows, (reach, reach, 0, 0), mode="replicate"), kernel[None, None, None])
    columns = pad(rows, (0, 0, reach, reach), mode="replicate")
    return conv2d(columns, kernel[None, None, :, None]).view_as(pictures)
