"""Boxes around the parts of a map that are above a threshold."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.geometry.affine import Box
from visattn.results.records import Result

BOX_THRESHOLD = 0.5
"""Share of the peak; of 0.1 to 0.8, the one with which most Grad-CAM boxes fit objects."""


@dataclass(frozen=True)
class MapBox:
    """The box around one connected part of a map."""

    box: Box
    """Left, top, right, bottom in pixels of the upright image."""
    score: float
    """Share of the positive mass of the map that is in the part, from 0 to 1."""
    peak: float
    """Highest value of the part."""
    label: str = ""
    """Label of the map."""
    map_index: int = 0
    """Index of the map along the first axis."""


@dataclass(frozen=True)
class MapBoxes(Result):
    """Boxes of one or more maps, in descending order of scores per map.

    Args:
        threshold: Minimum value of the pixels of a part, as a share of the peak of each map.
        image_size: Height and width of the upright image.
        num_maps: Number of maps, including those without a box.
    """

    boxes: tuple[MapBox, ...]
    threshold: float
    image_size: tuple[int, int]
    num_maps: int = 1

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes)

    def __iter__(self) -> Iterator[MapBox]:
        """Iterate over the boxes."""
        return iter(self.boxes)

    def per_map(self) -> list[list[Box]]:
        """Return the boxes of each map."""
        return [
            [box.box for box in self.boxes if box.map_index == index]
            for index in range(self.num_maps)
        ]


def part_boxes(
    values: Float[Tensor, "y x"],
    threshold: float,
    label: str = "",
    index: int = 0,
) -> list[MapBox]:
    """Return the boxes around the parts of a map at or above a share of its peak, largest first.

    Pixels that touch at a side or a corner are one part.

    Example:
        >>> values = torch.tensor([[4.0, 0.0, 1.0], [2.0, 0.0, 1.0]])
        >>> for box in part_boxes(values, 0.25):
        ...     print(box.box, box.score, box.peak)
        (0.0, 0.0, 1.0, 2.0) 0.75 4.0
        (2.0, 0.0, 3.0, 2.0) 0.25 1.0
    """
    from scipy import ndimage  # pyright: ignore[reportMissingTypeStubs]

    known = values.detach().cpu().nan_to_num(0.0).clamp(min=0.0)
    mask = (known >= threshold * known.max()) & (known > 0)
    # Pixels that touch at a corner belong to one part.
    labels: Any = ndimage.label(mask.numpy(), torch.ones(3, 3).numpy())[0]  # pyright: ignore[reportIndexIssue]
    total = float(known.sum(dtype=torch.float64))
    boxes: list[MapBox] = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        inside = torch.from_numpy(labels[rows, columns] == number)
        mass = known[rows, columns][inside]
        sides = (columns.start, rows.start, columns.stop, rows.stop)
        left, top, right, bottom = map(float, sides)
        share = float(mass.sum(dtype=torch.float64)) / total
        boxes.append(MapBox((left, top, right, bottom), share, float(mass.max()), label, index))
    return sorted(boxes, key=lambda box: -box.score)
