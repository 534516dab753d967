"""Samples and batches for object detection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment import augment
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.masks import sample_nearest
from visattn.data.source import to_device
from visattn.functional.boxes import corners_to_center
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.kinds import NO_OBJECT


@dataclass(frozen=True, eq=False)
class DetectionSample:
    """An image at the input size of a detector, with its objects.

    Args:
        id: Name of the image.
        image: The input.
        boxes: Left, top, right, bottom of each object in pixels of the input; zero area if it is
            outside.
        masks: The mask of each object on the input, for scoring maps; None in training.
        geometry: Maps the input to the transformed image.
        labels: Class of each object.
        crowd: Whether it is a group of objects, which is excluded from the targets.
        true_boxes: The boxes in pixels of the image, before any transform.
        areas: The areas in pixels of the image.
    """

    id: str
    image: UInt8[Tensor, "3 y x"]
    boxes: Float[Tensor, "n 4"]
    masks: Bool[Tensor, "n y x"] | None
    geometry: Geometry
    labels: Int[Tensor, " n"]
    crowd: Bool[Tensor, " n"]
    true_boxes: Float[Tensor, "n 4"]
    areas: Float[Tensor, " n"]


def detection_input(
    sample: Any,
    seed: int,
    *,
    numbers: Mapping[str, int],
    resize: ResizeSpec,
    transforms: Sequence[v2.Transform] = (),
    masks: bool = False,
    value_range: tuple[float, float] | None = None,
) -> DetectionSample:
    """Apply random transforms to an annotated image and resize it to a detector's input.

    Args:
        sample: The image with its objects, as accepted by `AnnotatedImage.of`.
        seed: Seed of the transforms.
        numbers: The index of each class name.
        resize: Resizing to the input.
        transforms: Random transforms of image and boxes.
        masks: Whether to return masks; the transforms are not applied to them.
        value_range: See `read_photo`.
    """
    image = AnnotatedImage.of(sample)
    pixels = torch.tensor(image.read(value_range).pixels).permute(2, 0, 1)
    true_boxes = image.boxes()
    pixels, _, moved_boxes = augment(transforms, seed, pixels, boxes=true_boxes)
    boxes = true_boxes if moved_boxes is None else moved_boxes
    moved = LoadedImage(pixels.permute(1, 2, 0).contiguous().numpy())
    pixels, geometry = resize_to_input(moved, resize)
    height, width = resize.size
    stacked = None
    if masks:  # at full size one at a time: photos may be far larger
        stacked = torch.zeros(len(image.objects), height, width, dtype=torch.bool)
        for row, mask in zip(stacked, image.masks(), strict=True):
            row.copy_(sample_nearest(mask, geometry, fill=0))
    return DetectionSample(
        image.name,
        pixels,
        geometry.boxes_to_input(boxes) * torch.tensor([width, height] * 2),
        stacked,
        geometry,
        torch.tensor([numbers[obj.category] for obj in image.objects], dtype=torch.long),
        torch.tensor([obj.crowd for obj in image.objects], dtype=torch.bool),
        true_boxes,
        torch.tensor(image.areas(), dtype=torch.float32),
    )


class DetectionBatch(NamedTuple):
    """A batch for a detector; targets are padded to the largest number of objects in an image."""

    samples: tuple[DetectionSample, ...]
    images: UInt8[Tensor, "b 3 y x"]
    labels: Int[Tensor, "b m"]
    """Class indices; `NO_OBJECT` for padding."""
    boxes: Float[Tensor, "b m 4"]
    """Center x, center y, width, height, relative to the image."""
    objects: Int[Tensor, "b m"]
    """Index of each target among the objects of its sample."""

    to = to_device


def collate_detections(samples: Sequence[DetectionSample]) -> DetectionBatch:
    """Collate samples of one size; crowds and objects outside the image are not targets."""
    targets: list[tuple[Tensor, Tensor, Tensor]] = []
    for sample in samples:
        height, width = sample.geometry.input_size
        boxes = sample.boxes / torch.tensor([width, height] * 2)
        visible = (boxes[:, 2:] > boxes[:, :2]).all(1) & ~sample.crowd
        (kept,) = visible.nonzero(as_tuple=True)
        targets.append((sample.labels[kept], corners_to_center(boxes[kept]).float(), kept))
    length = max(len(kept) for _, _, kept in targets)
    labels = torch.full((len(samples), length), NO_OBJECT)
    centers = torch.zeros(len(samples), length, 4)
    objects = torch.zeros_like(labels)
    for row, (classes, boxes, kept) in enumerate(targets):
        labels[row, : len(kept)] = classes
        centers[row, : len(kept)] = boxes
        objects[row, : len(kept)] = kept
    images = torch.stack([sample.image for sample in samples])
    return DetectionBatch(tuple(samples), images, labels, centers, objects)
