"""Placement of feature maps: where their cells lie on the network's input."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Box = tuple[float, float, float, float]
Align = Literal["receptive_field", "edges"]
Evidence = Literal["arithmetic", "gradient"]


@dataclass(frozen=True)
class GridPlacement:
    """The part of the network's input that a map covers, if each cell lies where it looks.

    A cell belongs where its receptive field is centered. A 3 x 3 convolution with stride 2 and
    padding 1 moves centers by half a pixel of its input to the left and up, which adds up to half a
    cell in most CNNs: their maps do not cover the input from edge to edge.

    Args:
        extent: Left, top, right, bottom of all cells, in pixels of the input, where a cell reaches
            halfway to its neighbors. It may exceed the input, or cover a part of it.
        input_size: Height and width of the input that these pixels belong to.
        covered: Left, top, right, bottom of the part of the input that the map speaks of: what its
            cells look at, up to half a cell beyond the outermost; None for all of the input.
        spread: How far apart, in pixels, the centers of the branches lie that are added or
            concatenated on the way to the map, (y, x); the extent is that of their mean.
        evidence: Whether centers follow from the `arithmetic` of strides and paddings, or were
            measured by the `gradient` of a cell with respect to the input.

    Raises:
        ValueError: If the extent is empty.

    Source:
        Araujo, Norris and Sim 2019, "Computing receptive fields of convolutional neural networks".

    Example:
        >>> start, step = (0.5, 0.5), (2.0, 2.0)  # 3 x 3, stride 2, padding 1
        >>> stem = GridPlacement.from_centers(start, step, (4, 6), (8, 12))
        >>> stem.extent, stem.shift((4, 6))
        ((-0.5, -0.5, 11.5, 7.5), (-0.25, -0.25))
    """

    extent: Box
    input_size: tuple[int, int]
    covered: Box | None = None
    spread: tuple[float, float] = (0.0, 0.0)
    evidence: Evidence = "arithmetic"

    def __post_init__(self) -> None:
        """Check the extent."""
        left, top, right, bottom = self.extent
        if left == right or top == bottom:
            raise ValueError(f"cells must cover a part of the input, got {self.extent}")

    @classmethod
    def from_centers(
        cls,
        start: tuple[float, float],
        step: tuple[float, float],
        grid: tuple[int, int],
        input_size: tuple[int, int],
        *,
        visible: Box | None = None,
        spread: tuple[float, float] = (0.0, 0.0),
        evidence: Evidence = "arithmetic",
    ) -> "GridPlacement":
        """Return the placement of cells by the center of the first and the distance of the next.

        Args:
            start: Center of the first cell, (y, x) in pixels; that of the first pixel is 0.5.
            step: From one cell to the next, (y, x).
            visible: The part of the input that any cell looks at; None for all of it.
        """
        height, width = input_size
        whole = (0.0, 0.0, float(input_size[1]), float(input_size[0]))
        visible_left, visible_top, visible_right, visible_bottom = (
            whole if visible is None else visible
        )
        rows = _cells(
            start[0], step[0], grid[0], (max(visible_top, 0), min(visible_bottom, height))
        )
        columns = _cells(
            start[1], step[1], grid[1], (max(visible_left, 0), min(visible_right, width))
        )
        extent = (columns[0], rows[0], columns[1], rows[1])
        covered = (columns[2], rows[2], columns[3], rows[3])
        return cls(extent, input_size, None if covered == whole else covered, spread, evidence)

    @classmethod
    def edges(cls, input_size: tuple[int, int]) -> "GridPlacement":
        """Return the placement of a map that is stretched over the input from edge to edge."""
        return cls((0.0, 0.0, float(input_size[1]), float(input_size[0])), input_size)

    def centers(self, grid: tuple[int, int]) -> tuple[Float[Tensor, " gy"], Float[Tensor, " gx"]]:
        """Return the centers of rows and columns, in pixels of the input.

        Example:
            >>> GridPlacement.edges((4, 6)).centers((2, 3))[1]
            tensor([1., 3., 5.], dtype=torch.float64)
        """
        left, top, right, bottom = self.extent
        rows, columns = (torch.arange(count, dtype=torch.float64) + 0.5 for count in grid)
        return top + rows * (bottom - top) / grid[0], left + columns * (right - left) / grid[1]

    def step(self, grid: tuple[int, int]) -> tuple[float, float]:
        """Return the distance between neighboring cells, (y, x)."""
        left, top, right, bottom = self.extent
        return (bottom - top) / grid[0], (right - left) / grid[1]

    def shift(self, grid: tuple[int, int]) -> tuple[float, float]:
        """Return how far the middle of the map lies from that of the input, in cells, (y, x)."""
        left, top, right, bottom = self.extent
        height, width = self.input_size
        dy, dx = self.step(grid)
        return (top + bottom - height) / 2 / dy, (left + right - width) / 2 / dx

    def moved_to(
        self, cell: tuple[int, int], grid: tuple[int, int], center: tuple[float, float]
    ) -> "GridPlacement":
        """Return the placement whose cell was measured at a center, between those of the branches.

        Example:
            >>> branches = GridPlacement((-2.0, -2.0, 6.0, 6.0), (8, 8), spread=(1.0, 1.0))
            >>> branches.moved_to((0, 0), (2, 2), (0.25, 7.0)).extent
            (-1.0, -1.75, 7.0, 6.25)
        """
        moves = [
            min(max(measured - float(centers[index]), -apart), apart)
            for measured, centers, index, apart in zip(
                center, self.centers(grid), cell, self.spread, strict=True
            )
        ]
        left, top, right, bottom = self.extent
        extent = (left + moves[1], top + moves[0], right + moves[1], bottom + moves[0])
        covered = self.covered
        height, width = self.input_size
        if covered is not None:
            covered = (
                max(covered[0] + moves[1], 0.0), max(covered[1] + moves[0], 0.0),
                min(covered[2] + moves[1], width), min(covered[3] + moves[0], height),
            )  # fmt: skip
        return replace(self, extent=extent, covered=covered, evidence="gradient")

    def boxes_to_cells(self, boxes: Float[Tensor, "*n 4"]) -> Float[Tensor, "*n 4"]:
        """Map boxes relative to the input to boxes relative to the map's grid.

        What covers cells of a map, or is compared with their centers, is measured in these. A box
        beyond the outermost cells counts for the nearest of them; empty boxes stay as they are.
        Boxes are left, top, right, bottom.

        Example:
            >>> left = GridPlacement((0.0, 0.0, 10.0, 20.0), (20, 20))
            >>> left.boxes_to_cells(torch.tensor([[0.25, 0.5, 0.5, 1.0], [0.75, 0.0, 1.0, 1.0]]))
            tensor([[0.5000, 0.5000, 1.0000, 1.0000],
                    [0.5000, 0.0000, 1.0000, 1.0000]])
        """
        left, top, right, bottom = self.extent
        height, width = self.input_size
        corner = boxes.new_tensor([left / width, top / height] * 2)
        sides = boxes.new_tensor([(right - left) / width, (bottom - top) / height] * 2)
        first, last = ((boxes - corner) / sides).unflatten(-1, (2, 2)).unbind(-2)
        # Cells that cover 0 to 3 of 16 pixels, and a box from 8 to 9.6: it lies at 2.67 to 3.2 of
        # the grid, beyond the map. Moved back by 2.2 it lies at 0.47 to 1, in the last cells.
        back = torch.where(first >= 1, last - 1, 0.0) + torch.where(last <= 0, first, 0.0)
        placed = torch.cat((first - back, last - back), -1)
        empty = (boxes[..., 2:] <= boxes[..., :2]).any(-1, keepdim=True)
        return torch.where(empty, boxes, placed)

    def at_size(self, input_size: tuple[int, int]) -> "GridPlacement":
        """Return the same placement in pixels of an input of another size.

        Example:
            >>> GridPlacement((-2.0, -2.0, 6.0, 6.0), (8, 8)).at_size((16, 8)).extent
            (-2.0, -4.0, 6.0, 12.0)
        """
        if input_size == self.input_size:
            return self
        y, x = (new / old for new, old in zip(input_size, self.input_size, strict=True))
        boxes = [
            box and (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
            for box in (self.extent, self.covered)
        ]
        return replace(
            self,
            extent=boxes[0] or self.extent,
            covered=boxes[1],
            input_size=input_size,
            spread=(self.spread[0] * y, self.spread[1] * x),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as plain lists and numbers that JSON can represent."""
        covered = {} if self.covered is None else {"covered": list(self.covered)}
        return {
            "extent": list(self.extent), "input_size": list(self.input_size), **covered,
            "spread": list(self.spread), "evidence": self.evidence,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "GridPlacement":
        """Return the placement from the dictionary of `to_dict`.

        Raises:
            ValueError: If a key is missing or a value is invalid.

        Example:
            >>> half = GridPlacement((0.0, 0.0, 10.0, 20.0), (20, 20))
            >>> GridPlacement.from_dict(half.to_dict()) == half
            True
        """
        try:
            covered = plain.get("covered")
            height, width = plain["input_size"]
            spread_y, spread_x = map(float, plain.get("spread", (0.0, 0.0)))
            evidence: Evidence = "gradient" if plain.get("evidence") == "gradient" else "arithmetic"
            return cls(
                _box(plain["extent"]),
                (int(height), int(width)),
                None if covered is None else _box(covered),
                (spread_y, spread_x),
                evidence,
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"not a placement as to_dict writes it: {error!r}") from error


def _cells(
    start: float, step: float, count: int, visible: tuple[float, float]
) -> tuple[float, float, float, float]:
    """Return beginning and end of cells along an axis, and of what they cover."""
    # Four cells of a 3 x 3 convolution with stride 2 and padding 1, over 8 pixels:
    #
    #     input       0   1   2   3   4   5   6   7   8
    #     centers       0.5     2.5     4.5     6.5
    #     extent   -0.5                           7.5         halfway to the neighbors
    #     covered     0                               8       half a cell more, within the input
    first = start - step / 2
    last = start + (count - 0.5) * step
    low = min(first, last) - abs(step) / 2
    high = max(first, last) + abs(step) / 2
    return first, last, float(max(low, visible[0])), float(min(high, visible[1]))


def align_of(placement: GridPlacement | None) -> Align:
    """Return how the cells of a map are placed, as its metadata says it."""
    return "edges" if placement is None else "receptive_field"


def _box(values: Any) -> Box:
    left, top, right, bottom = map(float, values)
    if not all(abs(value) < float("inf") for value in (left, top, right, bottom)):
        raise ValueError(f"a box must be finite, got {values}")
    return left, top, right, bottom
