"""Placement of an image, its glimpse boxes and glimpse patches on a canvas of limited size."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import TRACK
from visattn.viz.maps.resize import resize_image

_MIN_INTEGER_SCALE = 3  # larger scales are rounded down, so that all pixels have equal size


@dataclass(frozen=True)
class ImagePlacement:
    """Position and scale of an image on a canvas.

    Args:
        canvas_size: Height and width of the canvas.
        image_size: Height and width of the resized image.
        offset: Left and top of the image on the canvas.
        scale: Scale of the image along x and y.
    """

    canvas_size: tuple[int, int]
    image_size: tuple[int, int]
    offset: tuple[int, int]
    scale: tuple[float, float]

    @property
    def image_area(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the image on the canvas."""
        left, top = self.offset
        return left, top, left + self.image_size[1], top + self.image_size[0]

    def boxes_on_canvas(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Transform boxes from pixels of the image to pixels of the canvas."""
        return self.boxes_on_resized_image(boxes) + np.array(self.offset * 2, dtype=float)

    def boxes_on_resized_image(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Transform boxes from pixels of the image to pixels of the resized image."""
        return boxes * np.array(self.scale * 2)

    def paste_image(self, image: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "y2 x2 3"]:
        """Return the canvas: the resized image with margins of one color."""
        canvas = np.empty((*self.canvas_size, 3), np.uint8)
        canvas[:] = TRACK
        (left, top), (height, width) = self.offset, self.image_size
        canvas[top : top + height, left : left + width] = resize_image(image, self.image_size)
        return canvas


def place_image(
    image_size: tuple[int, int],
    boxes: Float[np.ndarray, "t s 4"],
    max_size: tuple[int, int],
    *,
    max_margin: float = 0.15,
) -> ImagePlacement:
    """Fit an image and the glimpses around it into a canvas.

    Args:
        image_size: Height and width of the image.
        boxes: Left, top, right and bottom of each box, the finest scale first, in pixels of the
            image.
        max_size: Maximum height and width of the canvas.
        max_margin: Maximum margin for boxes of the finest scale that extend beyond the image, as a
            fraction of the longer side of the image.

    Example:
        >>> place_image((28, 28), np.array([[[-4.0, 10.0, 4.0, 18.0]]]), (340, 340)).offset
        (40, 0)
    """
    limit, finest = max_margin * max(image_size), boxes[:, 0]
    image_width_height = np.array(image_size[::-1])
    before = np.clip(-finest[:, :2].min(0, initial=0), 0, limit)  # left, top
    after = np.clip(finest[:, 2:].max(0, initial=0) - image_width_height, 0, limit)
    width, height = before + after + image_width_height
    scale = min(max_size[1] / width, max_size[0] / height)
    scale = float(int(scale)) if scale >= _MIN_INTEGER_SCALE else scale
    resized = max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))
    (left, top), (right, bottom) = np.ceil(before * scale), np.ceil(after * scale)
    canvas = (resized[0] + int(top) + int(bottom), resized[1] + int(left) + int(right))
    scales = (resized[1] / image_size[1], resized[0] / image_size[0])
    return ImagePlacement(canvas, resized, (int(left), int(top)), scales)


def glimpse_mosaic(
    patches: UInt8[np.ndarray, "t s c g g"],
    boxes: Float[np.ndarray, "t s 4"],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the patches of all glimpses at their positions, at the resolution of the model.

    Where patches overlap, the finest scale is on top, and of one scale the latest glimpse. Pixels
    outside all patches are hatched.

    Args:
        patches: Pixels of each glimpse and scale, with one or three color channels.
        boxes: Left, top, right and bottom of each glimpse and scale, the finest scale first, in
            pixels of the output.
        size: Height and width of the output.

    Raises:
        ValueError: If the patches have no channels, as those of records of `visattn glimpse`.

    Example:
        >>> white = np.full((1, 1, 1, 2, 2), 255, np.uint8)
        >>> glimpse_mosaic(white, np.array([[[0.0, 0, 2, 2]]]), (2, 4))[0, :, 0] == 255
        array([ True,  True, False, False])
    """
    if not patches.shape[2]:
        raise ValueError(
            "the scan path is that of a record without what the network saw: compute it with "
            "glimpses(model, image), or read one that save of a ScanPath wrote"
        )
    blank = np.zeros((*size, 3), np.uint8)
    output = overlay(blank, np.full(size, np.nan))
    for scale in reversed(range(boxes.shape[1])):
        for patch, box in zip(patches[:, scale], boxes[:, scale], strict=True):
            _paste_patch(output, patch_to_rgb(patch), box)
    return output


def draw_patch(patch: UInt8[np.ndarray, "c g g"], size: int) -> UInt8[np.ndarray, "size size 3"]:
    """Return a patch resized to a square image.

    Example:
        >>> draw_patch(np.zeros((1, 8, 8), np.uint8), 24).shape
        (24, 24, 3)
    """
    return resize_image(patch_to_rgb(patch), (size, size))


def patch_to_rgb(patch: UInt8[np.ndarray, "c y x"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image of one or three channels, channels first, as RGB, channels last.

    Example:
        >>> patch_to_rgb(np.full((1, 1, 1), 9, np.uint8))
        array([[[9, 9, 9]]], dtype=uint8)
    """
    return np.ascontiguousarray(np.broadcast_to(patch, (3, *patch.shape[1:])).transpose(1, 2, 0))


def _paste_patch(
    output: UInt8[np.ndarray, "y x 3"],
    patch: UInt8[np.ndarray, "g g 3"],
    box: Float[np.ndarray, " 4"],
) -> None:
    """Paste a patch into a box by nearest neighbor, at the pixels whose centers are in the box."""
    rows, patch_rows = _nearest_cells(float(box[1]), float(box[3]), len(output), len(patch))
    columns, patch_columns = _nearest_cells(
        float(box[0]), float(box[2]), output.shape[1], len(patch)
    )
    output[rows[:, None], columns] = patch[patch_rows[:, None], patch_columns]


def _nearest_cells(
    start: float, end: float, length: int, num_cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of one axis inside an interval, and the patch cell of each."""
    centers = np.arange(length) + 0.5
    inside = np.flatnonzero((centers >= start) & (centers < end))
    position = (centers[inside] - start) / (end - start)
    return inside, np.minimum((position * num_cells).astype(int), num_cells - 1)
