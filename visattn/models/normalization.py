"""The input contract of every model: uint8 images, or floats that are already normalized."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

MAX_PIXELS = 2**24
"""Pixels of one input image: 4096 x 4096. A model file may not ask for more memory than that."""
_MAX_NORMALIZED = 10.0  # white is 2 to 3 with the mean and std of usual data


def check_normalization(
    size: tuple[int, int], mean: Sequence[float], std: Sequence[float], channels: Sequence[int]
) -> None:
    """Check the input size and the normalization constants of a model.

    Args:
        size: Height and width, in pixels.
        mean: Mean of each channel, in [0, 1].
        std: Standard deviation of each channel, in [0, 1].
        channels: The numbers of channels that are possible.

    Raises:
        ValueError: If they do not fit together, or the input has more than `MAX_PIXELS` pixels.

    Example:
        >>> check_normalization((2**20, 2**20), (0.5,), (0.5,), (1, 3))
        Traceback (most recent call last):
        ValueError: size must hold at most 16,777,216 pixels, got 1048576 x 1048576
    """
    if min(size) < 1 or len(mean) not in channels or len(std) != len(mean) or min(std) <= 0:
        counts = " or ".join(map(str, channels))
        raise ValueError(
            f"size needs two sides >= 1, mean and std {counts} channels with std > 0; "
            f"got size={size}, mean={mean}, std={std}"
        )
    if prod(size) > MAX_PIXELS:
        raise ValueError(f"size must hold at most {MAX_PIXELS:,} pixels, got {size[0]} x {size[1]}")


def normalize_images(images: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return images as a network takes them: uint8 is normalized, floats are already.

    Floats are never scaled: a float image in 0 to 255 or 0 to 1 must be normalized by the
    caller, with the model's `mean` and `std`, as for every PyTorch model. On the CPU, where looking
    at the values costs no synchronization, floats that can only be unnormalized pixels are refused.

    Args:
        images: uint8 in 0 to 255, or floats.
        shift: 255 times the mean of each channel.
        scale: 255 times the standard deviation of each channel.

    Raises:
        TypeError: If they are of any other dtype.
        ValueError: If floats are pixels in 0 to 255.

    Example:
        >>> white = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
        >>> shift, scale = torch.tensor(127.5), torch.tensor(63.75)
        >>> normalize_images(white, shift, scale).max()
        tensor(2.)
        >>> normalize_images(white / 255, shift, scale).max()
        tensor(1.)
        >>> normalize_images(white.float(), shift, scale)
        Traceback (most recent call last):
        ValueError: float images are taken as normalized, but these are 255 to 255, like pixel...
    """
    if images.dtype == torch.uint8:
        return (images - shift) / scale
    if not images.is_floating_point():
        raise TypeError(
            "images must be uint8, 0 to 255, which the model normalizes itself, or floats, "
            f"normalized with its mean and std; got {images.dtype}"
        )
    _check_float_range(images, shift, scale)
    return images


def _check_float_range(images: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Refuse floats that are pixels in 0 to 255, where that is known without a device sync."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return
    functorch: Any = torch._C._functorch  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue]
    wrapped = functorch.is_functorch_wrapped_tensor(images)  # by vmap or grad
    if wrapped or images.device.type != "cpu" or type(images) is not Tensor or not images.numel():
        return
    low, high = map(float, images.detach().aminmax())
    white = float(((255 - shift) / scale).max())
    if low >= 0 and high > max(_MAX_NORMALIZED, 4 * white):
        raise ValueError(
            f"float images are taken as normalized, but these are {low:g} to {high:g}, like "
            "pixels in 0 to 255: pass uint8, which the model normalizes itself, or normalize them "
            "with (images / 255 - mean) / std"
        )
