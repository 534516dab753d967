"""Cells of a layer on a photo: the part of it that each covers, without padding, and regions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped

from visattn.geometry.affine import Geometry
from visattn.geometry.placement import GridPlacement

Box = tuple[float, float, float, float]
_REGIONS: Mapping[str, tuple[tuple[Box, ...], bool]] = {
    "border": (((0.1, 0.1, 0.9, 0.9),), False),
    "corners": (((0, 0, 0.2, 0.2), (0.8, 0, 1, 0.2), (0, 0.8, 0.2, 1), (0.8, 0.8, 1, 1)), True),
    "center": (((0.3, 0.3, 0.7, 0.7),), True),
}
"""Boxes relative to the visible part of a photo, and whether the region is inside of them."""
REGION_AREAS = {"border": 0.36, "corners": 0.16, "center": 0.16}
"""Share of the area of each region, which is its share of a uniform map."""


@dataclass(frozen=True, eq=False)
class CellGrid:
    """Cells of a layer on one photo.

    Args:
        edges: Borders of rows and of columns, in pixels of the input; the outermost cells reach as
            far as the layer looks.
        geometry: Where the pixels of the input lie on the photo.

    Example:
        >>> photo = Geometry.identity((4, 8)).padded(2, 0, (8, 8))
        >>> cells = CellGrid.of(None, (2, 2), photo)
        >>> cells.areas, cells.shares(np.array([[0.0, 0.0], [3.0, 1.0]]))
        (array([[0.25, 0.25], [0.25, 0.25]]), array([[0.  , 0.  ], [0.75, 0.25]]))
    """

    edges: tuple[Float[np.ndarray, " gy1"], Float[np.ndarray, " gx1"]]
    geometry: Geometry

    @classmethod
    def of(
        cls, placement: GridPlacement | None, grid: tuple[int, int], geometry: Geometry
    ) -> "CellGrid":
        """Return the cells of a layer.

        Args:
            placement: Where they lie on the input; None from edge to edge.
            grid: Rows and columns.
            geometry: Where the input lies on the photo.
        """
        placed = placement or GridPlacement.edges(geometry.input_size)
        placed = placed.at_size(geometry.input_size)
        height, width = geometry.input_size
        left, top, right, bottom = placed.extent
        covered = placed.covered or (0.0, 0.0, float(width), float(height))
        rows = np.linspace(top, bottom, grid[0] + 1)
        columns = np.linspace(left, right, grid[1] + 1)
        rows[0], rows[-1] = covered[1], covered[3]
        columns[0], columns[-1] = covered[0], covered[2]
        edges = (np.clip(rows, covered[1], covered[3]), np.clip(columns, covered[0], covered[2]))
        return cls(edges, geometry)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.edges[0]) - 1, len(self.edges[1]) - 1

    @property
    def input_boxes(self) -> Float[np.ndarray, "cells 4"]:
        """Left, top, right, bottom of each cell on the input."""
        rows, columns = self.edges
        top, left = np.meshgrid(rows[:-1], columns[:-1], indexing="ij")
        bottom, right = np.meshgrid(rows[1:], columns[1:], indexing="ij")
        return np.stack([left, top, right, bottom], -1).reshape(-1, 4)

    @cached_property
    def boxes(self) -> Float[np.ndarray, "cells 4"]:
        """The same on the photo; empty on padding."""
        return self.on_photo(self.input_boxes)

    def on_photo(self, boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 4"]:
        """Return boxes in pixels of the input as boxes of the photo, clipped to what is visible."""
        height, width = self.geometry.input_size
        relative = torch.from_numpy(boxes / np.array([width, height, width, height]))
        return self.geometry.boxes_to_image(relative.double()).numpy()

    @cached_property
    def areas(self) -> Float[np.ndarray, "gy gx"]:
        """Share of the visible part of the photo that each cell covers; 0 on padding."""
        return self._relative(self.boxes)

    @property
    def is_visible(self) -> Bool[np.ndarray, "gy gx"]:
        """Whether a cell lies on the photo by half at least, and not on padding.

        Example:
            >>> photo = Geometry.identity((6, 8)).padded(2, 0, (8, 8))
            >>> CellGrid.of(None, (2, 1), photo).is_visible.tolist()
            [[True], [True]]
        """
        heights, widths = (np.diff(edges) for edges in self.edges)
        (a, b, _), (c, d, _), _ = self.geometry.matrix
        whole = np.outer(heights, widths) * abs(a * d - b * c)
        sizes = (self.boxes[:, 2:] - self.boxes[:, :2]).clip(0).prod(1).reshape(self.grid)
        return sizes >= whole / 2 - 1e-9

    def _relative(self, boxes: Float[np.ndarray, "cells 4"]) -> Float[np.ndarray, "gy gx"]:
        sizes = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
        return (sizes / max(sizes.sum(), 1e-12)).reshape(self.grid)

    def shares(self, values: Float[np.ndarray, "gy gx"]) -> Float[np.ndarray, "gy gx"]:
        """Return which share of the positive evidence on the photo lies in each cell.

        Args:
            values: A map; its values are densities.

        Returns:
            Numbers with the sum 1; zeros for a map without evidence.
        """
        mass = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0).clip(0) * self.areas
        return mass / (mass.sum() or 1.0)

    def centers(self, cells: Int[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
        """Return the centers of cells, x and y in pixels of the input."""
        rows, columns = ((edges[1:] + edges[:-1]) / 2 for edges in self.edges)
        return np.stack([columns[cells[:, 1]], rows[cells[:, 0]]], -1)

    def region_fractions(self) -> dict[str, Float[np.ndarray, "gy gx"]]:
        """Return which fraction of each cell lies in each of the regions of a photo."""
        left, top, right, bottom = self.geometry.region
        size = np.array([right - left, bottom - top] * 2)
        boxes = (self.boxes - np.array([left, top] * 2)) / size
        own = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
        fractions: dict[str, Float[np.ndarray, "gy gx"]] = {}
        for name, (parts, is_inside) in _REGIONS.items():
            common = np.zeros(len(boxes))
            for part in parts:
                low = np.maximum(boxes[:, :2], part[:2])
                common += (np.minimum(boxes[:, 2:], part[2:]) - low).clip(0).prod(1)
            share = common / np.where(own > 0, own, 1)
            fractions[name] = (share if is_inside else 1 - share).reshape(self.grid)
        return fractions

    def mask_fractions(self, mask: Bool[np.ndarray, "y x"]) -> Float[np.ndarray, "gy gx"]:
        """Return which fraction of the visible part of each cell a mask of the photo covers."""
        boxes = self.boxes
        own = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
        return (box_sums(mask, boxes) / np.where(own > 0, own, 1)).reshape(self.grid)

    def resample(
        self, values: Float[np.ndarray, "y x"], placement: GridPlacement | None
    ) -> Float[np.ndarray, "gy gx"]:
        """Return the mean of a map of another grid in each of these cells.

        Args:
            values: The map.
            placement: Where its cells lie on the input; None from edge to edge.
        """
        size = self.geometry.input_size
        placed = (placement or GridPlacement.edges(size)).at_size(size)
        left, top, right, bottom = placed.extent
        ends: list[Float[np.ndarray, "2 n"]] = []
        for edges, first, last, count in (
            (self.edges[0], top, bottom, values.shape[0]),
            (self.edges[1], left, right, values.shape[1]),
        ):
            at = (edges - first) / (last - first) * count
            low = at[:-1].clip(0, count - 1e-3)
            ends.append(np.stack([low, np.maximum(at[1:].clip(0, count), low + 1e-3)]))
        y0, x0 = np.meshgrid(ends[0][0], ends[1][0], indexing="ij")
        y1, x1 = np.meshgrid(ends[0][1], ends[1][1], indexing="ij")
        boxes = np.stack([x0, y0, x1, y1], -1).reshape(-1, 4)
        sizes = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        return (box_sums(values, boxes) / sizes).reshape(self.grid)


def box_sums(values: Shaped[np.ndarray, "y x"], boxes: Float[np.ndarray, "n 4"]) -> np.ndarray:
    """Return the integral of an image over boxes, whose sides may cut pixels.

    Example:
        >>> box_sums(np.array([[1.0, 3.0]]), np.array([[0.5, 0.0, 1.5, 1.0], [0.0, 0.0, 2.0, 0.5]]))
        array([2., 2.])
    """
    sums = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    sums[1:, 1:] = values.astype(np.float64).cumsum(0).cumsum(1)

    def at(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        y0 = np.floor(y).astype(int).clip(0, values.shape[0] - 1)
        x0 = np.floor(x).astype(int).clip(0, values.shape[1] - 1)
        dy, dx = y - y0, x - x0
        upper = sums[y0, x0] * (1 - dx) + sums[y0, x0 + 1] * dx
        lower = sums[y0 + 1, x0] * (1 - dx) + sums[y0 + 1, x0 + 1] * dx
        return upper * (1 - dy) + lower * dy

    left, top, right, bottom = boxes.T
    return at(bottom, right) - at(top, right) - at(bottom, left) + at(top, left)


def separate_maxima(values: Float[np.ndarray, "gy gx"], count: int) -> Int[np.ndarray, "n 2"]:
    """Return the highest positive cells of a map that do not touch each other, highest first.

    Example:
        >>> separate_maxima(np.array([[5.0, 4.0, 3.0], [0.0, 0.0, 0.0]]), 3)
        array([[0, 0],
               [0, 2]])
    """
    left = values.copy()
    cells: list[tuple[int, int]] = []
    while len(cells) < count:
        y, x = (int(each) for each in np.unravel_index(int(left.argmax()), left.shape))
        if left[y, x] <= 0:
            break
        cells.append((y, x))
        left[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 0
    return np.array(cells, dtype=np.int64).reshape(-1, 2)
