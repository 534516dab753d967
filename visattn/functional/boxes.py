"""Boxes: formats, and generalized intersection over union."""

import torch
from jaxtyping import Float
from torch import Tensor


def corners_to_center(boxes: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b 4"]:
    """Return center x, center y, width, height from left, top, right, bottom.

    Example:
        >>> corners_to_center(torch.tensor([1.0, 2.0, 3.0, 6.0]))
        tensor([2., 4., 2., 4.])
    """
    low = boxes[..., :2]
    high = boxes[..., 2:]
    return torch.cat(((low + high) / 2, high - low), -1)


def center_to_corners(boxes: Float[Tensor, "*b 4"]) -> Float[Tensor, "*b 4"]:
    """Return left, top, right, bottom from center x, center y, width, height.

    Example:
        >>> center_to_corners(torch.tensor([2.0, 4.0, 2.0, 4.0]))
        tensor([1., 2., 3., 6.])
    """
    center = boxes[..., :2]
    size = boxes[..., 2:]
    return torch.cat((center - size / 2, center + size / 2), -1)


def generalized_box_iou(
    first: Float[Tensor, "*#b 4"], second: Float[Tensor, "*#b 4"]
) -> Float[Tensor, "*b"]:
    """Return the generalized intersection over union of boxes, broadcast against each other.

    It is the IoU minus the fraction of the smallest enclosing box that neither of the two covers:
    from -1, for small boxes far apart, to 1.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [3.0, 0.0, 4.0, 1.0]])
        >>> generalized_box_iou(boxes[0], boxes)
        tensor([ 1.0000, -0.5000])

    Source:
        Rezatofighi et al. 2019, arXiv:1902.09630, algorithm 1.
    """
    inner = torch.minimum(first[..., 2:], second[..., 2:])
    inner = inner - torch.maximum(first[..., :2], second[..., :2])
    outer = torch.maximum(first[..., 2:], second[..., 2:])
    outer = outer - torch.minimum(first[..., :2], second[..., :2])
    intersection, enclosing = inner.clamp(min=0).prod(-1), outer.clamp(min=0).prod(-1)
    areas = ((each[..., 2:] - each[..., :2]).clamp(min=0).prod(-1) for each in (first, second))
    union = sum(areas) - intersection
    # Empty boxes overlap nothing, and have finite gradients.
    iou = intersection / union.where(union > 0, 1.0)
    return iou - (enclosing - union) / enclosing.where(enclosing > 0, 1.0)
