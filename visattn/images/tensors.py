"""Renderings of tensors, which are inputs of a model."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from visattn.images.channels import draw_channels
from visattn.images.reader import LoadedImage

_ROUNDING = 0.02  # by which interpolation may leave 0 to 1


def single_image(tensor: Tensor) -> Shaped[Tensor, "c y x"]:
    """Return a tensor, or a batch of one, as a single image without its history.

    Raises:
        ValueError: If it is no image.

    Example:
        >>> single_image(torch.zeros(1, 3, 4, 6)).shape
        torch.Size([3, 4, 6])
    """
    if tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.ndim != 3:
        kind = "; volumes and clips are not explained" if tensor.ndim > 3 else ""
        raise ValueError(
            f"a tensor must be an image [c, y, x] or a batch [b, c, y, x], got "
            f"{list(tensor.shape)}{kind}"
        )
    return tensor.detach()


def render_tensor(
    tensor: Float[Tensor, "c y x"],
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> LoadedImage:
    """Return the rendering of an input of a model: its colors if mean and std are known.

    Without them, or if values then leave 0 to 1, each channel is stretched between its percentiles.

    Example:
        >>> render_tensor(torch.zeros(3, 2, 2), (0.5,) * 3, (0.25,) * 3).pixels[0, 0]
        array([128, 128, 128], dtype=uint8)
    """
    values = tensor.detach().float().cpu()
    text = ""
    if mean is not None and std is not None:
        scale, shift = (torch.tensor(list(each)).view(-1, 1, 1) for each in (std, mean))
        colors = values * scale + shift
        # Interpolation and rounding may leave 0 to 1 by little.
        if colors.min() > -_ROUNDING and colors.max() < 1 + _ROUNDING:
            values = colors.clamp(0, 1)
            text = "; mean and std undone"
    array = np.ascontiguousarray(values.movedim(0, 2).numpy())
    pixels, display = draw_channels(array)
    return LoadedImage(pixels, name="tensor", values=array, display=display + text)
