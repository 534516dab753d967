"""Affine transforms between the coordinates of network inputs and original images."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

Box = tuple[float, float, float, float]
Margin = tuple[int, int]
Row = tuple[float, float, float]
Matrix = tuple[Row, Row, Row]

_WHOLE = 0.985  # visible fraction that counts as all: crops to whole patches lose less


@dataclass(frozen=True)
class Geometry:
    """Affine transform from a network input to the original image, and the visible region.

    Coordinates are continuous (x, y) in pixels: the first pixel extends from 0 to 1, and its center
    is at 0.5. Start with `identity` and apply the preprocessing steps in their order.

    Args:
        matrix: Homogeneous matrix that maps a point (x, y, 1) of the input to the upright image.
            Only scalings, translations and flips.
        input_size: Height and width of the network's input.
        image_size: Height and width of the upright image.
        region: Left, top, right, bottom of the part of the image that is visible to the network.

    Raises:
        ValueError: If a size is below 1, a value is not finite, or the matrix shears or rotates.

    Example:
        >>> geometry = Geometry.identity((480, 640)).resized((240, 320)).cropped(8, 48, (224, 224))
        >>> geometry.to_image(torch.tensor([[0.0, 0.0], [224.0, 224.0]]))
        tensor([[ 96.,  16.],
                [544., 464.]])
        >>> geometry.region
        (96.0, 16.0, 544.0, 464.0)
    """

    matrix: Matrix
    input_size: tuple[int, int]
    image_size: tuple[int, int]
    region: Box

    def __post_init__(self) -> None:
        """Check values, which may come from untrusted files."""
        (a, b, _), (c, d, _), last_row = self.matrix
        numbers = [*self.region, *(value for row in self.matrix for value in row)]
        is_known = min(*self.input_size, *self.image_size) >= 1 and all(map(math.isfinite, numbers))
        if not is_known or not (a and d) or b or c or last_row != (0, 0, 1):
            raise ValueError(
                "a geometry must scale, translate or flip images of at least one pixel, with "
                f"finite numbers; got {self}"
            )

    @classmethod
    def identity(cls, size: tuple[int, int]) -> "Geometry":
        """Return the geometry of an upright image without preprocessing."""
        height, width = size
        unit: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
        return cls(unit, size, size, (0.0, 0.0, float(width), float(height)))

    def resized(self, size: tuple[int, int]) -> "Geometry":
        """Return the geometry after resizing the input, with a separate scale for each axis."""
        height, width = self.input_size
        new_height, new_width = size
        return self._after(width / new_width, 0.0, height / new_height, 0.0, size)

    def cropped(self, top: int, left: int, size: tuple[int, int]) -> "Geometry":
        """Return the geometry after cropping to a window, which limits the visible region.

        The part of the window beyond the input is padding, as in torchvision's `crop`.
        """
        height, width = size
        after = self._after(1.0, float(left), 1.0, float(top), size)
        seen = _seen_part(after.matrix, (0.0, 0.0, float(width), float(height)), self.region)
        return replace(after, region=seen)

    def padded(self, top: int, left: int, size: tuple[int, int]) -> "Geometry":
        """Return the geometry after padding the input to a canvas, with the input at (top, left).

        The region does not change, since padding shows nothing of the image.
        """
        return self.cropped(-top, -left, size)

    def flipped(self) -> "Geometry":
        """Return the geometry after flipping the input horizontally."""
        return self._after(-1.0, float(self.input_size[1]), 1.0, 0.0, self.input_size)

    def inset(self, margin: Margin) -> "Geometry":
        """Return the geometry of a map whose cells leave out a margin of the input.

        The region does not change, since the network sees the margin, too.

        Args:
            margin: Input pixels left out at the top and bottom, and at the left and right.

        Example:
            >>> network = Geometry.identity((168, 168)).resized((84, 84))
            >>> cells = network.inset((14, 14))
            >>> cells.input_size, cells.to_image(torch.tensor([[0.0, 56.0]]))
            ((56, 56), tensor([[ 28., 140.]]))
        """
        top, left = margin
        height, width = self.input_size
        return self._after(1.0, left, 1.0, top, (height - 2 * top, width - 2 * left))

    @property
    def seen_share(self) -> float:
        """Fraction of the area of the image that is visible to the network.

        Example:
            >>> Geometry.identity((224, 640)).cropped(0, 208, (224, 224)).seen_share
            0.35
        """
        left, top, right, bottom = self.region
        height, width = self.image_size
        return max(0.0, right - left) * max(0.0, bottom - top) / (height * width)

    @property
    def seen_text(self) -> str:
        """How much of the photo the model saw, as text; "" if it saw all of it.

        Example:
            >>> photo = Geometry.identity((224, 640))
            >>> photo.cropped(0, 208, (224, 224)).seen_text, photo.resized((224, 224)).seen_text
            ('the model saw 35 % of the photo', '')
        """
        if self.seen_share >= _WHOLE:
            return ""
        percent = "<1" if self.seen_share < 0.01 else f"{100 * self.seen_share:.0f}"
        return f"the model saw {percent} % of the photo"

    def then(self, step: "Geometry") -> "Geometry":
        """Compose with a step whose geometry starts from its own identity.

        Args:
            step: A geometry whose original image is the input of this one.

        Raises:
            ValueError: If the sizes differ.

        Example:
            >>> half = Geometry.identity((10, 20)).resized((5, 10))
            >>> half.then(Geometry.identity((5, 10)).flipped()) == half.flipped()
            True
        """
        if step.image_size != self.input_size:
            raise ValueError(f"the step must start at {self.input_size}, got {step.image_size}")
        (a, _, c), (_, e, f), _ = step.matrix
        after = self._after(a, c, e, f, step.input_size)
        return replace(after, region=_seen_part(self.matrix, step.region, self.region))

    def to_image(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Map points (x, y) of the network's input to the upright image."""
        matrix = torch.tensor(self.matrix, dtype=points.dtype, device=points.device)
        return points @ matrix[:2, :2].T + matrix[:2, 2]

    def to_input(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """Map points (x, y) of the upright image to the network's input.

        Example:
            >>> small = Geometry.identity((10, 20)).resized((5, 5))
            >>> small.to_input(torch.tensor([[20.0, 10.0]]))
            tensor([[5., 5.]])
        """
        # In float64 for points of any dtype: `inv` does not support half precision.
        inverse = torch.linalg.inv(torch.tensor(self.matrix, dtype=torch.float64))
        inverse = inverse.to(points)
        return points @ inverse[:2, :2].T + inverse[:2, 2]

    def boxes_to_input(self, boxes: Float[Tensor, "n 4"]) -> Float[Tensor, "n 4"]:
        """Map boxes of the upright image to the network's input, relative to its size.

        Args:
            boxes: Left, top, right, bottom in pixels of the upright image.

        Returns:
            Left, top, right, bottom between 0 and 1, clipped to the visible region. A box outside
            this region becomes empty.

        Example:
            >>> half = Geometry.identity((10, 20)).cropped(0, 10, (10, 10)).flipped()
            >>> half.boxes_to_input(torch.tensor([[5.0, 0.0, 15.0, 10.0]]))
            tensor([[0.5000, 0.0000, 1.0000, 1.0000]])
        """
        top_left, bottom_right = boxes.new_tensor(self.region).view(2, 2)
        clipped = boxes.view(-1, 2, 2).clamp(top_left, bottom_right)
        corners = self.to_input(clipped.reshape(-1, 2)).view(-1, 2, 2)
        corners = corners / corners.new_tensor(self.input_size[::-1])
        return torch.cat([corners.amin(1), corners.amax(1)], dim=-1).clamp(0, 1)

    def boxes_to_image(self, boxes: Float[Tensor, "n 4"]) -> Float[Tensor, "n 4"]:
        """Map boxes of the network's input, relative to its size, to the upright image.

        Args:
            boxes: Left, top, right, bottom as fractions of the input.

        Returns:
            Left, top, right, bottom in pixels of the upright image, clipped to the visible region.
            A box outside this region, on padding, becomes empty.

        Example:
            >>> half = Geometry.identity((10, 20)).cropped(0, 10, (10, 10)).flipped()
            >>> half.boxes_to_image(torch.tensor([[0.5, 0.0, 1.0, 1.0]]))
            tensor([[10.,  0., 15., 10.]])
        """
        corners = boxes.view(-1, 2, 2) * boxes.new_tensor(self.input_size[::-1])
        points = self.to_image(corners.reshape(-1, 2)).view(-1, 2, 2)
        top_left, bottom_right = boxes.new_tensor(self.region).view(2, 2)
        corners = torch.stack([points.amin(1), points.amax(1)], 1)
        return corners.clamp(top_left, bottom_right).flatten(1)

    def _after(
        self, scale_x: float, shift_x: float, scale_y: float, shift_y: float, size: tuple[int, int]
    ) -> "Geometry":
        """Return the geometry after a step that moves `scale * p + shift` to p."""
        # The matrix goes back, from the newest input to the image: the newest step is undone first.
        # Half the size, then 25 columns cropped on the left:
        #
        #     x -> x + 25 -> 2 (x + 25)      first row of the matrix: 2, 0, 50
        (a, _, c), (_, e, f), last = self.matrix
        x, y = (a * scale_x, 0.0, a * shift_x + c), (0.0, e * scale_y, e * shift_y + f)
        return replace(self, matrix=(x, y, last), input_size=size)


def _seen_part(matrix: Matrix, window: Box, region: Box) -> Box:
    """Return the part of a region of the image that a window shows; at its edge if nothing."""
    (a, _, c), (_, e, f), _ = matrix
    left, top, right, bottom = region
    x0, x1 = sorted((a * window[0] + c, a * window[2] + c))
    y0, y1 = sorted((e * window[1] + f, e * window[3] + f))
    return (
        min(max(x0, left), right),
        min(max(y0, top), bottom),
        min(max(x1, left), right),
        min(max(y1, top), bottom),
    )
