"""Rasterization of annotations: polygons, COCO run-length encoding (RLE) and boxes."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Int

from visattn.geometry.affine import Box
from visattn.io.safe_text import short_repr
from visattn.results.attention_map import AttentionMap

_MAX_COORDINATE = 10_000_000  # pixels


class CocoRLE(TypedDict):
    """A mask as COCO stores it: height and width, and the compressed run lengths."""

    size: list[int]
    counts: str


def polygon_mask(
    polygons: Sequence[Sequence[float]], size: tuple[int, int]
) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers lie inside at least one of the polygons.

    Each is x, y, x, y, ... in pixels, of which the first spans 0 to 1. It is filled by the even-odd
    rule, so that self-intersections may leave holes.

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
        _check_corners(polygon)
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

    The counts are lengths of background and foreground in turn, or COCO's compressed string.

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


def mask_rle(mask: Bool[np.ndarray, "y x"]) -> CocoRLE:
    """Encode a mask as COCO's compressed RLE, of which `rle_mask` is the inverse.

    Example:
        >>> mask_rle(np.array([[False, True, False], [True, False, False]]))
        {'size': [2, 3], 'counts': '123'}

    Source:
        `pycocotools.mask.encode`, to the character.
    """
    pixels = mask.T.reshape(-1)
    # Background before the first pixel makes a first run of 0 if the mask begins inside; a pixel
    # unlike the last one ends the last run.
    edges = np.flatnonzero(np.diff(pixels, prepend=False, append=not pixels[-1]))
    lengths = np.diff(edges, prepend=0).tolist()
    counts = "".join(
        _compress_count(length - (lengths[index - 2] if index > 2 else 0))
        for index, length in enumerate(lengths)
    )
    return {"size": [*mask.shape], "counts": counts}


def map_rle(attention_map: AttentionMap, threshold: float = 0.5) -> CocoRLE:
    """Return the part of the image where a map is high, as a COCO segmentation.

    Args:
        attention_map: A single map with a geometry.
        threshold: Share of the maximum of the map on the image from which a pixel belongs to the
            mask, in (0, 1]. Pixels that the network did not see never do.

    Raises:
        ValueError: If there are several maps, the threshold is out of range, the map is nowhere
            above 0, or has no place on an image.

    Example:
        >>> import torch
        >>> from visattn.geometry import Geometry
        >>> halves = AttentionMap(torch.tensor([[0.1, 1.0]]), "layer4", "gradient")
        >>> rle = map_rle(halves.with_geometry(Geometry.identity((2, 4))))
        >>> rle, segmentation_mask(rle, (2, 4)).sum()
        ({'size': [2, 4], 'counts': '44'}, np.int64(4))
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be in (0, 1], got {threshold}")
    if attention_map.values.ndim != 2:
        raise ValueError(
            f"there must be a single map [y, x], got {attention_map}; index it: maps[0]"
        )
    values = attention_map.resize_to_image().detach().cpu().numpy()
    highest = np.nanmax(values, initial=0.0)
    if not highest > 0:
        raise ValueError(f"the map must be above 0 somewhere, got {attention_map}")
    return mask_rle(values >= threshold * highest)  # false for NaN


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
    """Return the polygons of a COCO segmentation that have corners, and the box around them.

    Annotation tools leave single points and lines beside a polygon; these have no area.

    Returns:
        The polygons of at least three corners; and left, top, right, bottom around them, None
        without a polygon.

    Raises:
        ValueError: If none of them has three corners, or one is not on the image.

    Example:
        >>> check_polygons([[7, 5], [0, 0, 3, 0, 0, 2]], (5, 7))
        ([[0, 0, 3, 0, 0, 2]], (0, 0, 3, 2))
    """
    kept = [polygon for polygon in polygons if not _is_point_or_line(polygon)]
    if not kept and polygons:
        _check_corners(polygons[0])
    edges = [_polygon_box(polygon, size) for polygon in kept]
    if not edges:
        return kept, None
    left, top, right, bottom = zip(*edges, strict=True)
    return kept, (min(left), min(top), max(right), max(bottom))


def check_rle(segmentation: Any, size: tuple[int, int]) -> list[int] | str:
    """Return the counts of a COCO segmentation as RLE after checking everything.

    Raises:
        ValueError: If it is no RLE, or belongs to an image of another size.

    Example:
        >>> check_rle({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3))
        [1, 2, 3]
    """
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            "a segmentation must be a list of polygons or an object with size and counts, "
            f"got {short_repr(segmentation)}"
        )
    rle_size = segmentation["size"]
    counts = segmentation["counts"]
    if not isinstance(rle_size, (list, tuple)) or list(rle_size) != list(size):
        raise ValueError(
            f"RLE of size {short_repr(rle_size)} does not match an image of {list(size)} (height, "
            "width)"
        )
    counts = counts.decode() if isinstance(counts, bytes) else counts
    integers = isinstance(counts, list) and set(map(type, counts)) <= {int}
    if not integers and not isinstance(counts, str):
        raise ValueError(f"RLE counts must be integers or a string, got {short_repr(counts)}")
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


def _is_point_or_line(polygon: Any) -> bool:
    return isinstance(polygon, (list, tuple)) and len(polygon) in (2, 4)


def _check_corners(polygon: Any) -> None:
    """Raise if this is not a list of the coordinates of at least three corners."""
    if not isinstance(polygon, (list, tuple)) or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError(
            f"a polygon must be a list of x, y of at least three corners, got {short_repr(polygon)}"
        )
    if not (
        set(map(type, polygon)) <= {int, float}
        and -_MAX_COORDINATE < min(polygon) <= max(polygon) < _MAX_COORDINATE
        and math.isfinite(sum(polygon))  # comparisons do not find NaN
    ):
        raise ValueError(
            f"polygon coordinates must be finite numbers below {_MAX_COORDINATE:,}, "
            f"got {short_repr(polygon)}"
        )


def _polygon_box(polygon: Any, size: tuple[int, int]) -> Box:
    """Return the box around a polygon after checking that it is one, and on the image."""
    _check_corners(polygon)
    x = polygon[::2]
    y = polygon[1::2]
    left = min(x)
    top = min(y)
    right = max(x)
    bottom = max(y)
    height, width = size
    overlaps = left <= width and right >= 0 and top <= height and bottom >= 0
    # Run lengths that a tool has written as a polygon have coordinates far outside.
    near = -width <= left and right <= 2 * width and -height <= top and bottom <= 2 * height
    if not (overlaps and near):
        raise ValueError(
            f"a polygon must lie on its image of {width} x {height} pixels, got x from {left:g} to "
            f"{right:g} and y from {top:g} to {bottom:g} in {short_repr(polygon)}"
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


def _compress_count(number: int) -> str:
    """Compress a number: 5 bits per character, with a bit for more to follow."""
    text = ""
    while True:
        bits, number = number & 31, number >> 5
        last = number == (-1 if bits & 16 else 0)
        text += chr(48 + bits + (0 if last else 32))
        if last:
            return text


def _run_lengths(counts: Sequence[int] | str, size: tuple[int, int]) -> Int[np.ndarray, " n"]:
    """Return the run lengths of RLE after checking that they fill the image exactly."""
    is_text = isinstance(counts, str)
    lengths = _decompress_counts(counts) if is_text else np.array(counts, dtype=object)
    total = int(lengths.sum()) if len(lengths) else 0
    if total == size[0] * size[1] and lengths.min() >= 0:
        return lengths.astype(np.int64)
    raise ValueError(f"RLE counts must sum to {size[0]} x {size[1]} pixels, got {total}")


def _decompress_counts(text: str) -> Int[np.ndarray, " n"]:
    """Decompress COCO's RLE string: 5 bits per character, differences from the fourth count on."""
    bits = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64) - 48
    if not len(bits):
        return bits
    if len(wrong := np.flatnonzero((bits < 0) | (bits > 63))):
        raise ValueError(f"characters of an RLE string must be 0 to o, got {text[wrong[0]]!r}")
    (ends,) = np.nonzero(bits < 32)  # the bit 32 says that more characters follow
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else np.zeros(1, np.int64)
    if np.diff(starts, append=len(bits)).max() > 8:  # no image is so large
        raise ValueError("counts of an RLE string must be below 2^40")
    if not len(ends) or ends[-1] < len(bits) - 1:
        raise ValueError("the RLE string ends in the middle of a number: it is truncated")
    places = np.arange(len(bits)) - np.repeat(starts, ends - starts + 1)
    values = np.add.reduceat((bits & 31) << (5 * places), starts)
    values -= np.where(bits[ends] & 16, 1 << (5 * (ends - starts + 1)), 0)  # two's complement
    # Runs 1 3 2 4 2 2 6 are written as 1 3 2 1 0 -2 4: from the fourth on, as the difference from
    # the run two before, as runs of neighboring columns are alike. Every second number is summed
    # up, from the second and from the third on; the first stands alone.
    lengths = values.astype(np.float64)  # exact below 2^53, and does not wrap around
    for first in (1, 2):
        lengths[first::2] = lengths[first::2].cumsum()
    if np.abs(lengths).max() >= 2**40:
        raise ValueError("counts of an RLE string must be below 2^40")
    return lengths.astype(np.int64)
