"""Detectors of torchvision whose layers are set by hand: they detect a bright square of a photo."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d
from torchvision.models.detection import FCOS, FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.ssd import SSD

CHANNELS, STRIDE, SIDE = 32, 8, 24
"""Channels and stride of the features; side of the boxes on the canvas of the detector."""


class _Brightness(nn.Module):
    """The mean brightness of each cell, in all channels."""

    def __init__(self, out_channels: int | list[int] = CHANNELS) -> None:
        super().__init__()
        self.out_channels = out_channels

    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        cells = avg_pool2d(images.mean(1, keepdim=True), STRIDE)
        return OrderedDict({"0": cells.expand(-1, CHANNELS, -1, -1).clone()})


def detector(name: str, min_size: int = 96, max_size: int = 192) -> Any:
    """Return a detector with 3 classes; class 2 has the higher score the brighter the square."""
    common = {
        "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "min_size": min_size, "max_size": max_size
    }  # fmt: skip
    one_stage = {"score_thresh": 0.0, "detections_per_img": 5}
    mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    two_stage = {"box_score_thresh": 0.0, "box_detections_per_img": 5, "box_head": mean}
    two_stage |= {"box_predictor": FastRCNNPredictor(CHANNELS, 3)}
    two_stage["rpn_anchor_generator"] = _anchors()
    make: dict[str, Callable[[], nn.Module]] = {
        "RetinaNet": lambda: RetinaNet(
            _Brightness(), 3, anchor_generator=_anchors(), **one_stage, **common
        ),
        "FCOS": lambda: FCOS(
            _Brightness(), 3, anchor_generator=_anchors(STRIDE), **one_stage, **common
        ),
        "SSD": lambda: SSD(
            _Brightness([CHANNELS]),
            DefaultBoxGenerator([[]], scales=[0.2, 0.2], steps=[STRIDE]),
            (max_size, min_size),
            3,
            image_mean=[0.0] * 3,
            image_std=[1.0] * 3,
            **one_stage,
        ),
        "FasterRCNN": lambda: FasterRCNN(_Brightness(), **two_stage, **common),
        "MaskRCNN": lambda: MaskRCNN(
            _Brightness(),
            mask_head=nn.Conv2d(CHANNELS, 1, 1),
            mask_predictor=nn.Conv2d(1, 3, 1),
            **two_stage,
            **common,
        ),
    }
    model: Any = make[name]().eval()
    with torch.no_grad():
        for path, weight in model.named_parameters():
            _set_weight(path, weight)
        if name == "FCOS":  # distances to the sides, in strides; other boxes are their anchors
            model.head.regression_head.bbox_reg.bias.fill_(SIDE / 2 / STRIDE)
    return model


def _anchors(side: int = SIDE) -> AnchorGenerator:
    return AnchorGenerator(((side,),), ((1.0,),))


def _set_weight(path: str, weight: Tensor) -> None:
    """Let convolutions pass the brightness of a cell on; boxes stay at their anchors."""
    if weight.ndim == 1 and not path.endswith("bias"):
        weight.fill_(1.0)  # group normalization
        return
    weight.zero_()
    if any(part in path for part in ("bbox_reg", "bbox_pred", "regression_head.module", "mask")):
        return
    scores = any(part in path for part in ("cls", "classification_head.module"))
    if weight.ndim == 1:
        weight.fill_(-2.0 if scores else 0.0)
        return
    center = (
        weight[:, :, weight.shape[2] // 2, weight.shape[3] // 2] if weight.ndim == 4 else weight
    )
    center.fill_((4.0 if scores else 1.0) / weight.shape[1])
    if scores and len(weight) % 3 == 0:
        weight.view(-1, 3, *weight.shape[1:])[:, :2] = 0.0
