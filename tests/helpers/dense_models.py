"""Small segmentation and detection models whose maps are known."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate
from torchvision.models.detection.transform import GeneralizedRCNNTransform

CLASSES = ("sky", "cat", "dog")


class Segmenter(nn.Module):
    """An encoder of stride 4, a head of 1 x 1 convolutions, and bilinear upsampling or none."""

    def __init__(self, *, upsample: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.upsample = upsample
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 7, 3, 2, 1), nn.ReLU(), nn.Conv2d(7, 11, 3, 2, 1), nn.Softplus()
        )
        self.head = nn.Sequential(nn.Conv2d(11, 13, 1), nn.Softplus(), nn.Conv2d(13, 3, 1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.encoder(images))
        if self.upsample:
            logits = interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)
        return {"out": logits}


class PatchDetector(nn.Module):
    """Detects a dog at one fixed box, with the mean brightness of the pixels in it as score.

    A second detection, of a cat, does not depend on the image. `reverse` permutes them.
    """

    def __init__(self, box: tuple[int, int, int, int], *, reverse: bool = False) -> None:
        super().__init__()
        self.box, self.reverse = box, reverse

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        left, top, right, bottom = self.box
        outputs: list[dict[str, Tensor]] = []
        for image in images:
            score = image[:, top:bottom, left:right].mean()
            parts = {
                "boxes": image.new_tensor([self.box, (1, 1, 4, 4)]),
                "scores": torch.stack((score, image.new_tensor(0.7))),
                "labels": torch.tensor([2, 1]),
            }
            order = [1, 0] if self.reverse else [0, 1]
            outputs.append({key: part[order] for key, part in parts.items()})
        return outputs


class _Pyramid(nn.Module):
    def forward(self, images: Tensor) -> "OrderedDict[str, Tensor]":
        bright = images.mean(1, keepdim=True)
        bright = torch.cat((bright, bright**2), 1)
        return OrderedDict((str(n), avg_pool2d(bright, 8 * 2**n)) for n in range(3))


class BlobDetector(nn.Module):
    """A detector that resizes and pads: it boxes the brightest cell of one pyramid level."""

    def __init__(self, level: str = "1") -> None:
        super().__init__()
        self.transform = GeneralizedRCNNTransform(160, 320, [0.0] * 3, [1.0] * 3)
        self.backbone = _Pyramid()
        self.level = level

    def forward(self, images: Any) -> list[dict[str, Tensor]]:
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in images]
        batch, _ = self.transform(list(images))
        features = self.backbone(batch.tensors)[self.level][:, 0]
        stride = batch.tensors.shape[2] // features.shape[1]
        detections: list[dict[str, Tensor]] = []
        for cells in features:
            best = int(cells.argmax())
            row, column = divmod(best, cells.shape[1])
            corner = torch.tensor([column, row, column + 1, row + 1]) * stride
            labels, score = torch.tensor([2]), cells.flatten()[best]
            detections.append(
                {"boxes": corner[None].float(), "scores": score[None], "labels": labels}
            )
        return self.transform.postprocess(detections, batch.image_sizes, sizes)


class QueryDetector(nn.Module):
    """Four queries, each of which reads the mean color of a quarter of the image."""

    def __init__(self, *, extra: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.num_classes = 3
        self.head = nn.Linear(3, 3 + extra)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        quarters = nn.functional.adaptive_avg_pool2d(images, 2).flatten(2).mT
        centers = images.new_tensor([(0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75)])
        boxes = torch.cat((centers, torch.full_like(centers, 0.5)), 1).expand(len(images), 4, 4)
        return {"logits": self.head(quarters), "pred_boxes": boxes}
