"""Geometric transforms of an image together with the masks and boxes of its objects."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from visattn.data.augment.images import (
    TORCHVISION_TRANSFORMS,
    AugmentationSpec,
    build_from_spec,
)
from visattn.data.regions.masks import mask_boxes
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.kinds import IGNORE_CLASS

_GRAY = 127


@dataclass(frozen=True, eq=False)
class RegionSample:
    """An image with the masks and boxes of its objects; transforms keep them aligned.

    Every transform returns a new sample. Objects are never dropped, so that their order stays that
    of their labels: outside of the image a mask has no pixels and a box has no area. Boxes are
    moved as boxes and masks as masks, so that neither depends on the other.

    Args:
        image: Upright RGB.
        masks: One mask per object; None if they are not needed.
        boxes: Left, top, right, bottom of each object in pixels of `image`.
        geometry: Maps `image` to the original image.

    Raises:
        ValueError: If masks, boxes and geometry do not match the image.

    Example:
        >>> masks = torch.zeros(1, 4, 6, dtype=torch.bool)
        >>> masks[0, 1:3, 0:2] = True
        >>> boxes = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
        >>> image = LoadedImage(np.zeros((4, 6, 3), dtype=np.uint8))
        >>> sample = RegionSample.from_image(image, masks, boxes).hflip()
        >>> sample.boxes.tolist(), sample.masks[0].nonzero()[0].tolist()
        ([[4.0, 1.0, 6.0, 3.0]], [1, 4])
    """

    image: UInt8[Tensor, "3 y x"]
    masks: Bool[Tensor, "n y x"] | None
    boxes: Float[Tensor, "n 4"]
    geometry: Geometry

    def __post_init__(self) -> None:
        """Check the sizes."""
        size = self.geometry.input_size
        for name, tensor, shape in (
            ("image", self.image, (3, *size)),
            ("masks", self.masks, (len(self.boxes), *size)),
            ("boxes", self.boxes, (len(self.boxes), 4)),
        ):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must be {shape}, got {tuple(tensor.shape)}")

    @property
    def object_masks(self) -> Bool[Tensor, "n y x"]:
        """The mask of each object.

        Raises:
            ValueError: If the sample has no masks.
        """
        if self.masks is None:
            raise ValueError("the sample has no masks; load it with masks=True")
        return self.masks

    @classmethod
    def from_image(
        cls,
        image: LoadedImage,
        masks: Bool[Tensor, "n y x"] | None,
        boxes: Float[Tensor, "n 4"],
    ) -> Self:
        """Return the sample of an image at its own size."""
        pixels = torch.tensor(image.pixels).permute(2, 0, 1)
        return cls(pixels, masks, boxes, Geometry.identity(image.size, image.orientation))

    def hflip(self) -> Self:
        """Return the sample flipped left to right."""
        return self._after(self.image.flip(-1), self._identity().flipped())

    def crop(self, top: int, left: int, size: tuple[int, int]) -> Self:
        """Return the window of this height and width from row `top` and column `left` on.

        Raises:
            ValueError: If the window is not inside the image.
        """
        step = self._identity().cropped(top, left, size)
        return self._after(self.image[:, top : top + size[0], left : left + size[1]], step)

    def resize(self, resize: ResizeSpec) -> Self:
        """Return the sample at the input size of a network, as `resize_to_input` resizes it."""
        return self._after(
            *resize_to_input(LoadedImage(self.image.permute(1, 2, 0).numpy()), resize)
        )

    def transform(self, transforms: "JointTransforms", seed: int) -> Self:
        """Return the sample after random transforms.

        A rotated box bounds the corners of the box before, which is larger than the object. The
        geometry of the result starts at the transformed image. The `mask_fill` must be 0.
        """
        image, masks, boxes = transforms.move(self.image, seed, masks=self.masks, boxes=self.boxes)
        geometry = Geometry.identity((image.shape[1], image.shape[2]))
        return type(self)(image, masks, self.boxes if boxes is None else boxes, geometry)

    def with_mask_boxes(self) -> Self:
        """Return the sample with the bounding boxes of the masks' pixels; zeros for empty masks.

        Raises:
            ValueError: If it has no masks.
        """
        boxes = torch.from_numpy(mask_boxes(self.object_masks.numpy())).to(self.boxes)
        return replace(self, boxes=boxes)

    def _identity(self) -> Geometry:
        return Geometry.identity(self.geometry.input_size)

    def _after(self, image: UInt8[Tensor, "3 y x"], step: Geometry) -> Self:
        """Return the sample after a step, which `step` maps back to this sample."""
        height, width = step.input_size
        boxes = step.boxes_to_input(self.boxes) * self.boxes.new_tensor([width, height] * 2)
        masks = None if self.masks is None else sample_nearest(self.masks, step, fill=0)
        return type(self)(image, masks, boxes, self.geometry.then(step))


def sample_nearest(values: Tensor, step: Geometry, *, fill: int) -> Tensor:
    """Return, at each pixel center after a step, the pixel of the values that contains it.

    Args:
        values: Masks or label maps, [..., y, x].
        step: Maps the pixels after the step to those of the values.
        fill: Value of pixels that lie outside of the values.

    Example:
        >>> step = Geometry.identity((1, 2)).padded(0, 1, (1, 4))
        >>> sample_nearest(torch.tensor([[3, 7]]), step, fill=255)
        tensor([[255,   3,   7, 255]])
    """
    length = max(step.input_size)
    centers = torch.arange(length, dtype=torch.float64)[:, None].expand(length, 2) + 0.5
    cells = step.to_image(centers).floor().long()  # x and y are independent of each other
    columns = cells[: step.input_size[1], 0]
    rows = cells[: step.input_size[0], 1]
    left, top, right, bottom = step.region
    inside_x = (columns >= left) & (columns < right)
    inside_y = (rows >= top) & (rows < bottom)
    height, width = values.shape[-2:]
    sampled = values[..., rows.clamp(0, height - 1), :][..., columns.clamp(0, width - 1)]
    return sampled.masked_fill(~(inside_y[:, None] & inside_x), fill)


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
