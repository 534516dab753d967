"""Rasterization of annotations: polygons, COCO run-length encoding (RLE) and boxes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.geometry.affine import Box, Geometry
from visattn.io.safe_text import short_repr


def polygon_mask(
    polygons: Sequence[Sequence[float]], size: tuple[int, int]
) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers lie inside at least one of the polygons.

    A polygon is x, y, x, y, ... in pixels, where the first pixel spans 0 to 1. It is filled by the
    even-odd rule, so self-intersections may leave holes.

    Raises:
        ValueError: If a polygon has fewer than three corners, or coordinates out of range.

    Example:
        >>> polygon_mask([[0.0, 0.0, 3.0, 0.0, 0.0, 3.0]], (3, 4)).astype(int)
        array([[1, 1, 0, 0],
               [1, 0, 0, 0],
               [0, 0, 0, 0]])
    """
    mask = np.zeros(size, dtype=bool)
    for polygon in polygons:
        mask |= _fill_polygon(np.asarray(polygon, dtype=float).reshape(-1, 2), size)
    return mask


def mask_boxes(masks: Bool[np.ndarray, "n y x"]) -> Float[np.ndarray, "n 4"]:
    """Return the bounding box of the pixels of each mask.

    Returns:
        Left, top, right, bottom in pixels, where right and bottom are the far edges of the last
        column and row (torchvision's `masks_to_boxes` returns their indices, one less); zeros for
        a mask without pixels.

    Example:
        >>> mask = np.array([[[False, True, True], [False, False, True]]])
        >>> mask_boxes(mask)
        array([[1., 0., 3., 2.]])
    """
    height, width = masks.shape[1:]
    columns = np.any(masks, 1)
    rows = np.any(masks, 2)
    sides = (
        columns.argmax(1),
        rows.argmax(1),
        width - columns[:, ::-1].argmax(1),
        height - rows[:, ::-1].argmax(1),
    )
    return np.where(np.any(rows, 1)[:, None], np.stack(sides, 1), 0).astype(np.float64)


def rle_mask(counts: Sequence[int] | str, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Decode COCO's run-length encoding (RLE): column by column, starting with background.

    The counts are alternating lengths of background and foreground, or COCO's compressed string.

    Raises:
        ValueError: If they do not fill the image exactly.

    Example:
        >>> rle_mask([1, 2, 3], (2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
        >>> rle_mask("123", (2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
    """
    height, width = size
    lengths = _run_lengths(counts, size)
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(width, height).T


def segmentation_mask(segmentation: Any, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the mask of a COCO segmentation: polygons or RLE.

    Raises:
        ValueError: If it is neither, or belongs to an image of another size.

    Example:
        >>> segmentation_mask({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3)).sum()
        np.int64(2)
    """
    if isinstance(segmentation, list):
        return polygon_mask(check_polygons(segmentation, size)[0], size)
    return rle_mask(check_rle(segmentation, size), size)


def check_polygons(
    polygons: Sequence[Any], size: tuple[int, int]
) -> tuple[list[Sequence[float]], Box | None]:
    """Return the polygons of a COCO segmentation and their bounding box.

    Stray points and lines among the polygons are dropped.

    Raises:
        ValueError: If a polygon has fewer than three corners, or is outside the image.

    Example:
        >>> check_polygons([[1, 1, 5, 1, 5, 4], [2, 2]], (9, 9))
        ([[1, 1, 5, 1, 5, 4]], (1, 1, 5, 4))
    """
    kept = [polygon for polygon in polygons if len(polygon) not in (2, 4)] or polygons[:1]
    if not kept:
        return [], None
    edges = [_polygon_box(polygon, size) for polygon in kept]
    left, top, right, bottom = zip(*edges, strict=True)
    return list(kept), (min(left), min(top), max(right), max(bottom))


def check_rle(segmentation: Any, size: tuple[int, int]) -> list[int] | str:
    """Return the counts of a COCO segmentation in RLE.

    Raises:
        ValueError: If they do not fill an image of this size.

    Example:
        >>> check_rle({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3))
        [1, 2, 3]
    """
    counts = segmentation["counts"]
    counts = counts.decode() if isinstance(counts, bytes) else counts
    if list(segmentation["size"]) != list(size):
        raise ValueError(
            f"RLE of size {short_repr(segmentation['size'])} does not match an image of "
            f"{list(size)} (height, width)"
        )
    _run_lengths(counts, size)
    return counts


def boxes_mask(boxes: Sequence[Box], size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers lie in a box: left, top, right, bottom in pixels.

    Example:
        >>> boxes_mask([(0.0, 0.0, 1.4, 1.0), (2.5, 0.0, 3.0, 2.0)], (2, 3)).astype(int)
        array([[1, 0, 1],
               [0, 0, 1]])
    """
    mask = np.zeros(size, dtype=bool)
    y, x = (np.arange(count) + 0.5 for count in size)
    for left, top, right, bottom in boxes:
        mask |= ((y >= top) & (y <= bottom))[:, None] & ((x >= left) & (x <= right))
    return mask


def sample_nearest(values: Tensor, step: Geometry, *, fill: int) -> Tensor:
    """Resample masks or label maps by nearest neighbor.

    Args:
        values: Masks or label maps, [..., y, x].
        step: Maps the output pixels to pixels of the values.
        fill: Value of output pixels outside the values.

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


def _polygon_box(polygon: Sequence[float], size: tuple[int, int]) -> Box:
    left, right = min(polygon[::2]), max(polygon[::2])
    top, bottom = min(polygon[1::2]), max(polygon[1::2])
    height, width = size
    # Some tools write run lengths as polygons, whose coordinates are then far outside.
    x_fits = -width <= left <= width and 0 <= right <= 2 * width
    y_fits = -height <= top <= height and 0 <= bottom <= 2 * height
    corners = len(polygon) >= 6 and len(polygon) % 2 == 0 and math.isfinite(sum(polygon))
    if not (corners and x_fits and y_fits):
        raise ValueError(
            f"a polygon must be x, y of at least three corners in an image of {width} x {height} "
            f"pixels, got {short_repr(polygon)}"
        )
    return left, top, right, bottom


def _fill_polygon(corners: np.ndarray, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers are inside of a polygon, by the even-odd rule."""
    inside = np.zeros(size, dtype=bool)
    ends = np.stack([np.floor(corners.min(0)), np.ceil(corners.max(0))])
    left, right = np.clip(ends[:, 0], 0, size[1]).astype(int)
    first, last = np.clip(ends[:, 1], 0, size[0]).astype(int)
    # Each edge marks, in the rows that it crosses, the first pixel center to its right. A row that
    # is crossed at x = 3 and x = 5:
    #
    #     marks         0 0 0 1 0 1
    #     running sum   0 0 0 1 1 2      odd inside
    #
    # Only the parity of the number of crossed edges matters, so uint8 may overflow.
    crossings = np.zeros((last - first, right - left + 1), dtype=np.uint8)
    rows = np.arange(first, last) + 0.5
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        crossed = np.flatnonzero((rows >= min(y0, y1)) & (rows < max(y0, y1)))
        if len(crossed):
            x = x0 + (rows[crossed] - y0) * ((x1 - x0) / (y1 - y0))
            columns = np.clip(np.ceil(x - 0.5), left, right).astype(np.int64) - left
            np.add.at(crossings, (crossed, columns), np.uint8(1))
    parity = crossings.cumsum(axis=1, dtype=np.uint8)[:, :-1] % 2 == 1
    inside[first:last, left:right] = parity
    return inside


def _run_lengths(counts: Sequence[int] | str, size: tuple[int, int]) -> list[int]:
    lengths = _decompress_counts(counts) if isinstance(counts, str) else [*map(int, counts)]
    if sum(lengths) != size[0] * size[1] or min(lengths) < 0:
        raise ValueError(f"RLE counts must sum to {size[0]} x {size[1]} pixels, got {sum(lengths)}")
    return lengths


def _decompress_counts(text: str) -> list[int]:
    """Return the run lengths of an RLE string, as COCO's `rleFrString` reads them."""
    lengths: list[int] = []
    value = shift = 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 40:  # larger than any image
            raise ValueError(f"counts must be an RLE string, got {short_repr(text)}")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:  # the bit 32 says that more characters follow
            value -= (bits & 16) << (shift - 4)  # two's complement
            # From the fourth on, a run is stored as the difference from the run two before.
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("the RLE string ends in the middle of a number: it is truncated")
    return lengths
