"""Regions of images as annotations write them down: polygons, run lengths, boxes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from visattn.geometry.affine import Box
from visattn.io.safe_text import shown

_FAR = 10_000_000  # pixels


def polygon_mask(
    polygons: Sequence[Sequence[float]], size: tuple[int, int]
) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose middle lies inside at least one of the polygons.

    A polygon that crosses itself has holes where it winds round twice.

    Args:
        polygons: Each x, y, x, y, ... in pixels; the first pixel reaches from 0 to 1.
        size: Height and width of the image.

    Raises:
        ValueError: If a polygon has fewer than three corners, or numbers that are none or far
            from any image.

    Example:
        >>> polygon_mask([[0.0, 0.0, 3.0, 0.0, 0.0, 3.0]], (3, 4)).astype(int)
        array([[1, 1, 0, 0],
               [1, 0, 0, 0],
               [0, 0, 0, 0]])
    """
    mask = np.zeros(size, dtype=bool)
    for polygon in polygons:
        corners = _corners(polygon)
        mask |= _filled(corners.reshape(-1, 2), size)
    return mask


def run_length_mask(counts: Sequence[int] | str, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the mask of COCO's run lengths: down the columns, beginning with what is outside.

    Args:
        counts: Lengths in turn outside and inside, or the text in which COCO packs them.
        size: Height and width of the image.

    Raises:
        ValueError: If they do not fill the image exactly.

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
        size: Height and width of the image.

    Raises:
        ValueError: If it is neither, or is of an image of another size.

    Example:
        >>> segmentation_mask({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3)).sum()
        np.int64(2)
    """
    if isinstance(segmentation, list):
        for polygon in segmentation:
            _corners(polygon)
        return polygon_mask(segmentation, size)
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            "a segmentation must be a list of polygons or an object with size and counts, "
            f"got {shown(segmentation)}"
        )
    told, counts = segmentation["size"], segmentation["counts"]
    if not isinstance(told, (list, tuple)) or list(told) != list(size):
        raise ValueError(f"run lengths of {shown(told)} pixels do not fit an image of {list(size)}")
    counts = counts.decode() if isinstance(counts, bytes) else counts
    plain = isinstance(counts, list) and all(type(count) is int for count in counts)
    if not plain and not isinstance(counts, str):
        raise ValueError(f"run lengths must be whole numbers or a text, got {shown(counts)}")
    return run_length_mask(counts, size)


def boxes_mask(boxes: Sequence[Box], size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose middle lies in at least one of the boxes.

    Args:
        boxes: Left, top, right, bottom in pixels.
        size: Height and width of the image.

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


def _corners(polygon: Any) -> Float[np.ndarray, " n"]:
    """Return the numbers of a polygon, once they are looked at."""
    if not isinstance(polygon, Sequence) or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError(f"a polygon must be x, y of three corners or more, got {shown(polygon)}")
    if not all(isinstance(one, (int, float)) and abs(one) < _FAR for one in polygon):  # nor NaN
        raise ValueError(
            f"the corners of a polygon must be finite numbers below {_FAR:,}, got {shown(polygon)}"
        )
    return np.asarray(polygon, dtype=float)


def _filled(corners: np.ndarray, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the inside of a polygon by the even-odd rule, for the middles of pixels."""
    inside = np.zeros(size, dtype=bool)
    (left, top), (right, bottom) = np.floor(corners.min(0)), np.ceil(corners.max(0))
    y, x = (np.clip((top, bottom), 0, size[0]), np.clip((left, right), 0, size[1]))
    (first, last), (left, right) = y.astype(int), x.astype(int)
    # Only whether an edge was crossed an odd number of times counts: 8 bits may run over.
    turns = np.zeros((last - first, right - left + 1), dtype=np.uint8)
    rows = np.arange(first, last) + 0.5
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        crossed = np.flatnonzero((rows >= min(y0, y1)) & (rows < max(y0, y1)))
        if len(crossed):
            at = x0 + (rows[crossed] - y0) * ((x1 - x0) / (y1 - y0))
            columns = np.clip(np.ceil(at - 0.5), left, right).astype(np.int64) - left
            np.add.at(turns, (crossed, columns), np.uint8(1))
    parity = turns.cumsum(axis=1, dtype=np.uint8)[:, :-1] % 2 == 1
    inside[first:last, left:right] = parity
    return inside


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
        if shift > 60:  # no image is so large; and ever longer numbers take for ever
            raise ValueError("run lengths in a text must stay below 2^60")
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("run lengths end in the middle of a number: the text was cut off")
    return lengths
