"""Regions of pictures as annotations write them down: polygons, run lengths, boxes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from visattn.maps.geometries import Box


def polygon_mask(
    polygons: Sequence[Sequence[float]], size: tuple[int, int]
) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose middle lies inside at least one of the polygons.

    A polygon that crosses itself has holes where it winds round twice.

    Args:
        polygons: Each x, y, x, y, ... in pixels; the first pixel reaches from 0 to 1.
        size: Height and width of the picture.

    Raises:
        ValueError: If a polygon has fewer than three corners, or numbers that are none.

    Example:
        >>> polygon_mask([[0.0, 0.0, 3.0, 0.0, 0.0, 3.0]], (3, 4)).astype(int)
        array([[1, 1, 0, 0],
               [1, 0, 0, 0],
               [0, 0, 0, 0]])
    """
    mask = np.zeros(size, dtype=bool)
    for polygon in polygons:
        corners = np.asarray(polygon, dtype=float)
        if corners.ndim != 1 or len(corners) < 6 or len(corners) % 2:
            raise ValueError(f"a polygon must be x, y of three corners or more, got {polygon}")
        if not np.isfinite(corners).all():
            raise ValueError(f"the corners of a polygon must be finite, got {polygon}")
        mask |= _filled(corners.reshape(-1, 2), size)
    return mask


def run_length_mask(counts: Sequence[int] | str, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the mask of COCO's run lengths: down the columns, beginning with what is outside.

    Args:
        counts: Lengths in turn outside and inside, or the text in which COCO packs them.
        size: Height and width of the picture.

    Raises:
        ValueError: If they do not fill the picture exactly.

    Example:
        >>> run_length_mask([1, 2, 3], (2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
        >>> run_length_mask("123", (2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 0, 0]])
    """
    height, width = size
    lengths = _unpacked(counts) if isinstance(counts, str) else list(counts)
    if any(length < 0 for length in lengths) or sum(lengths) != height * width:
        raise ValueError(
            f"run lengths must fill {height} x {width} pixels, they add up to {sum(lengths)}"
        )
    inside = np.arange(len(lengths)) % 2 == 1
    return np.repeat(inside, lengths).reshape(width, height).T


def segmentation_mask(segmentation: Any, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the mask of what COCO calls a segmentation: polygons, or run lengths.

    Args:
        segmentation: As it stands in the file.
        size: Height and width of the picture.

    Raises:
        ValueError: If it is neither, or is of a picture of another size.

    Example:
        >>> segmentation_mask({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3)).sum()
        np.int64(2)
    """
    if isinstance(segmentation, list):
        return polygon_mask(segmentation, size)
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            "a segmentation must be a list of polygons or an object with size and counts, "
            f"got {str(segmentation)[:60]}"
        )
    if tuple(segmentation["size"]) != tuple(size):
        raise ValueError(
            f"run lengths of {segmentation['size']} pixels do not fit a picture of {list(size)}"
        )
    counts = segmentation["counts"]
    return run_length_mask(counts.decode() if isinstance(counts, bytes) else counts, size)


def boxes_mask(boxes: Sequence[Box], size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose middle lies in at least one of the boxes.

    Args:
        boxes: Left, top, right, bottom in pixels.
        size: Height and width of the picture.

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


def _filled(corners: np.ndarray, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the inside of a polygon by the even-odd rule, for the middles of pixels."""
    height, width = size
    turns = np.zeros((height, width + 1), dtype=np.int64)
    rows = np.arange(height) + 0.5
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        crossed = np.flatnonzero((rows >= min(y0, y1)) & (rows < max(y0, y1)))
        if len(crossed):
            at = x0 + (rows[crossed] - y0) * ((x1 - x0) / (y1 - y0))
            first = np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)
            np.add.at(turns, (crossed, first), 1)
    return turns.cumsum(axis=1)[:, :width] % 2 == 1


def _unpacked(text: str) -> list[int]:
    """Return the run lengths in COCO's text: five bits a letter, differences from the third on."""
    lengths: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"run lengths in a text are letters from 0 to o, got {letter!r}")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("run lengths end in the middle of a number: the text was cut off")
    return lengths
