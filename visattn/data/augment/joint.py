"""Geometric transforms of an image together with the masks and boxes of its objects."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from visattn.data.augment.images import (
    TORCHVISION_TRANSFORMS,
    AugmentationSpec,
    build_from_spec,
)
from visattn.data.regions.sample import RegionSample
from visattn.geometry.affine import Geometry
from visattn.results.kinds import IGNORE_CLASS

_GRAY = 127


class JointTransforms:
    """Random transforms of `torchvision.transforms.v2` that move image, masks and boxes together.

    Masks are resampled to the nearest pixel, boxes are clipped at the image. Where a transform
    shows what is outside of the image, the image is gray and the masks are `mask_fill`.

    Args:
        specs: Transforms in their order, each a name with its options if it has any, as in
            `train_transforms`.
        mask_fill: Value of masks outside of the image: 255, which is ignored, for label maps; 0 for
            the masks of single objects.

    Raises:
        ValueError: If a name is unknown or does not accept its options.

    Example:
        >>> flip = JointTransforms([{"RandomHorizontalFlip": {"p": 1.0}}])
        >>> image, mask = torch.zeros(3, 1, 2, dtype=torch.uint8), torch.tensor([[7, 255]])
        >>> flip(image, mask, seed=0)[1]
        tensor([[255, 7]])
    """

    def __init__(self, specs: Sequence[AugmentationSpec], *, mask_fill: int = IGNORE_CLASS) -> None:
        self.mask_fill = mask_fill
        self.transforms = [_build_transform(spec, mask_fill) for spec in specs]

    def __call__(
        self, image: UInt8[Tensor, "3 y x"], masks: Tensor, seed: int
    ) -> tuple[UInt8[Tensor, "3 y2 x2"], Tensor]:
        """Return the transformed image and masks; arguments as for `move`.

        Raises:
            TypeError: If a transform changes the type of image or masks.
            ValueError: If image and masks differ in size afterwards.
        """
        new_image, new_masks, _ = self.move(image, seed, masks=masks)
        return new_image, masks if new_masks is None else new_masks

    def move_sample(self, sample: RegionSample, seed: int) -> RegionSample:
        """Return a sample after the transforms.

        A rotated box bounds the corners of the box before, which is larger than the object. The
        geometry of the result starts at the transformed image. The `mask_fill` must be 0.
        """
        image, masks, boxes = self.move(sample.image, seed, masks=sample.masks, boxes=sample.boxes)
        geometry = Geometry.identity((image.shape[1], image.shape[2]))
        return RegionSample(image, masks, sample.boxes if boxes is None else boxes, geometry)

    def move(
        self,
        image: UInt8[Tensor, "3 y x"],
        seed: int,
        *,
        masks: Tensor | None = None,
        boxes: Float[Tensor, "n 4"] | None = None,
    ) -> tuple[UInt8[Tensor, "3 y2 x2"], Tensor | None, Float[Tensor, "n 4"] | None]:
        """Return the transformed image, masks and boxes; what was not passed stays None.

        Masks are a label map [y, x], or one per object [n, y, x]; boxes are left, top, right and
        bottom in pixels.

        Raises:
            TypeError: If a transform changes the type of image or masks.
            ValueError: If image and masks differ in size afterwards, or a transform drops boxes.

        Example:
            >>> flip = JointTransforms([{"RandomHorizontalFlip": {"p": 1.0}}])
            >>> image = torch.zeros(3, 5, 7, dtype=torch.uint8)
            >>> flip.move(image, 0, boxes=torch.tensor([[0.0, 1.0, 2.0, 3.0]]))[2]
            tensor([[5., 1., 7., 3.]])
        """
        inputs: dict[str, Any] = {"image": tv_tensors.Image(image)}
        if masks is not None:
            inputs["masks"] = tv_tensors.Mask(masks)
        if boxes is not None:
            size = (image.shape[1], image.shape[2])
            made: Any = tv_tensors.BoundingBoxes  # whose constructor has no types
            inputs["boxes"] = made(boxes, format="XYXY", canvas_size=size)
        # Without devices, as transforms run on the CPU: else the state of each GPU is saved too.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            for transform in self.transforms:
                inputs = transform(inputs)
        new_image = inputs["image"]
        new_masks = inputs.get("masks")
        _check_moved(new_image, new_masks)
        new_boxes = inputs.get("boxes")
        if boxes is not None and new_boxes is not None:
            if len(new_boxes) != len(boxes):
                raise ValueError(
                    f"joint transforms must keep the {len(boxes)} boxes of an image, got "
                    f"{len(new_boxes)}: remove SanitizeBoundingBoxes and the like; objects outside "
                    "of the image are no targets"
                )
            clipped = v2.functional.clamp_bounding_boxes(new_boxes)
            new_boxes = clipped.as_subclass(Tensor)
        new_masks = None if new_masks is None else new_masks.as_subclass(Tensor)
        return new_image.as_subclass(Tensor), new_masks, new_boxes


def _check_moved(image: Tensor, masks: Tensor | None) -> None:
    """Refuse transforms that change the type of image or masks, or only the size of one."""
    if image.dtype != torch.uint8 or not isinstance(masks, tv_tensors.Mask | None):
        raise TypeError(
            f"joint transforms must return a uint8 image and its masks, got {image.dtype} "
            f"and {type(masks).__name__}; the model normalizes its input, so remove such "
            "transforms"
        )
    if masks is not None and image.shape[-2:] != masks.shape[-2:]:
        raise ValueError(
            f"image and masks must keep one size, got {tuple(image.shape[-2:])} and "
            f"{tuple(masks.shape[-2:])}"
        )


def _build_transform(spec: AugmentationSpec, mask_fill: int) -> v2.Transform:
    # torchvision would fill both with 0: a class in label maps, and black in images.
    fill = {tv_tensors.Image: _GRAY, tv_tensors.Mask: mask_fill}

    def build(transform: type[v2.Transform], **options: Any) -> v2.Transform:
        fills = "fill" in inspect.signature(transform).parameters
        return transform(**{"fill": fill, **options} if fills else options)

    known = {name: partial(build, transform) for name, transform in TORCHVISION_TRANSFORMS.items()}
    return build_from_spec(known, spec, "transform")
