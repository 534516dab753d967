"""An image with the masks and boxes of its objects."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from visattn.data.regions.masks import mask_boxes
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec, resize_to_input


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
        return cls(pixels, masks, boxes, Geometry.identity(image.size))

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
