"""Ink of digits: its box in an image, and its resizing to any position and scale."""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor


def ink_boxes(digits: UInt8[Tensor, "n 1 y x"]) -> Int[Tensor, "n 4"]:
    """Return top, left, bottom and right of the pixels above 0; the whole image if there are none.

    Example:
        >>> digit = torch.zeros(1, 1, 5, 7, dtype=torch.uint8)
        >>> digit[..., 1:4, 3] = 255
        >>> ink_boxes(digit).tolist()
        [[1, 3, 4, 4]]
    """
    ends = []
    for axis in (3, 2):  # rows with ink, then columns
        ink = (digits > 0).any(axis)[:, 0]
        ink |= ~ink.any(1, keepdim=True)
        first = ink.int().argmax(1)
        ends.append((first, ink.shape[1] - ink.flip(1).int().argmax(1)))
    (top, bottom), (left, right) = ends
    return torch.stack((top, left, bottom, right), 1)


def resize_weights(
    starts: Float[Tensor, "b n"], scales: Float[Tensor, "b n"], out: int, size: int
) -> Float[Tensor, "b n {out} {size}"]:
    """Return the weights of antialiased bilinear resizing along one axis.

    The products with float64 images, rounded, are the same on every machine.

    Args:
        starts: Position in the image at which output pixel 0 begins, in pixels. There is black
            outside of the image.
        scales: Factor of the resizing, at least 0.5.
        out: Length of the output in pixels.
        size: Length of the image in pixels.

    Example:
        >>> starts, scales = torch.tensor([[1.0]]), torch.tensor([[2.0]])
        >>> resize_weights(starts, scales, 2, 3)[0, 0]
        tensor([[0.2500, 0.7500, 0.0000],
                [0.0000, 0.7500, 0.2500]])
    """
    centers = starts[..., None] + (torch.arange(out) + 0.5) / scales[..., None]
    pixels = torch.arange(-2, size + 2) + 0.5
    support = scales.clamp(max=1)[..., None, None]
    weights = (1 - (centers[..., None] - pixels).abs() * support).clamp(min=0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=0.5)
    return weights[..., 2:-2]
