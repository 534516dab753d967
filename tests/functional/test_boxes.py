"""Boxes against torchvision, and by hand."""

import torch
from torch import Tensor
from torchvision import ops

from visattn.functional.boxes import center_to_corners, corners_to_center, generalized_box_iou


def random_boxes(count: int, seed: int) -> Tensor:
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)).double()
    return torch.cat((corners.amin(1), corners.amax(1)), 1)


def test_pairwise_overlaps_equal_those_of_torchvision() -> None:
    first, second = random_boxes(7, 0), random_boxes(11, 1)
    pairs = first[:, None], second
    torch.testing.assert_close(generalized_box_iou(*pairs), ops.generalized_box_iou(first, second))


def test_formats_equal_those_of_torchvision_and_invert_each_other() -> None:
    boxes = random_boxes(13, 2)
    torch.testing.assert_close(corners_to_center(boxes), ops.box_convert(boxes, "xyxy", "cxcywh"))
    torch.testing.assert_close(center_to_corners(corners_to_center(boxes)), boxes)


def test_empty_boxes_overlap_nothing_and_have_finite_gradients() -> None:
    empty = torch.zeros(1, 4, requires_grad=True)
    overlaps = generalized_box_iou(empty, empty)
    assert overlaps.tolist() == [0]
    [gradient] = torch.autograd.grad(overlaps.sum(), empty)
    assert bool(gradient.isfinite().all())
