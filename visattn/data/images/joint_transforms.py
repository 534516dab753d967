"""Geometric transforms of an image together with the masks and boxes of its objects."""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from visattn.data.images.reader import LoadedImage
from visattn.data.images.resize import ResizeSpec, resize_to_input
from visattn.geometry.affine import Geometry


@dataclass(frozen=True, eq=False)
class RegionSample:
    """An image with the masks and boxes of its objects; transforms keep them aligned.

    Every transform returns a new sample. Objects are never dropped, so that their order stays that
    of their labels: outside of the image a mask has no pixels and a box has no area.

    Args:
        image: Upright RGB.
        masks: One mask per object.
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
    masks: Bool[Tensor, "n y x"]
    boxes: Float[Tensor, "n 4"]
    geometry: Geometry

    def __post_init__(self) -> None:
        """Check the sizes."""
        size = self.geometry.input_size
        for name, part, shape in (
            ("image", self.image, (3, *size)),
            ("masks", self.masks, (len(self.boxes), *size)),
            ("boxes", self.boxes, (len(self.boxes), 4)),
        ):
            if part.shape != shape:
                raise ValueError(f"{name} must be {shape}, got {tuple(part.shape)}")

    @classmethod
    def from_image(
        cls,
        image: LoadedImage,
        masks: Bool[Tensor, "n y x"],
        boxes: Float[Tensor, "n 4"],
    ) -> Self:
        """Return the sample of an image at its own size.

        Args:
            image: The image, as `read_image` returns it.
            masks: One mask per object.
            boxes: Left, top, right, bottom of each object in pixels.
        """
        pixels = torch.tensor(image.pixels).permute(2, 0, 1)
        return cls(pixels, masks, boxes, Geometry.identity(image.size, image.orientation))

    def hflip(self) -> Self:
        """Return the sample flipped left to right."""
        return self._after(self.image.flip(-1), self._identity().flipped())

    def crop(self, top: int, left: int, size: tuple[int, int]) -> Self:
        """Return a window of the sample.

        Args:
            top: First row of the window.
            left: First column of the window.
            size: Height and width of the window.

        Raises:
            ValueError: If the window is not inside the image.
        """
        step = self._identity().cropped(top, left, size)
        return self._after(self.image[:, top : top + size[0], left : left + size[1]], step)

    def resize(self, resize: ResizeSpec) -> Self:
        """Return the sample at the input size of a network, with the pixels of `resize_to_input`.

        Args:
            resize: Size and mode.
        """
        return self._after(
            *resize_to_input(LoadedImage(self.image.permute(1, 2, 0).numpy()), resize)
        )

    def _identity(self) -> Geometry:
        return Geometry.identity(self.geometry.input_size)

    def _after(self, image: UInt8[Tensor, "3 y x"], step: Geometry) -> Self:
        """Return the sample after a step, which `step` maps back to this sample."""
        height, width = step.input_size
        boxes = step.boxes_to_input(self.boxes) * self.boxes.new_tensor([width, height] * 2)
        return type(self)(image, _sample_masks(self.masks, step), boxes, self.geometry.then(step))


def _sample_masks(masks: Bool[Tensor, "n y x"], step: Geometry) -> Bool[Tensor, "n y2 x2"]:
    """Return, at each pixel center after a step, the pixel of the masks that contains it."""
    length = max(step.input_size)
    centers = torch.arange(length, dtype=torch.float64)[:, None].expand(length, 2) + 0.5
    cells = step.to_image(centers).floor().long()  # x and y are independent of each other
    columns, rows = cells[: step.input_size[1], 0], cells[: step.input_size[0], 1]
    left, top, right, bottom = step.region
    inside_x = (columns >= left) & (columns < right)
    inside_y = (rows >= top) & (rows < bottom)
    sampled = masks[:, rows.clamp(0, masks.shape[1] - 1)][
        :, :, columns.clamp(0, masks.shape[2] - 1)
    ]
    return sampled & inside_y[:, None] & inside_x
