"""Rasterization of annotations: polygons, COCO run-length encoding (RLE) and boxes."""

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Bool, Float

from visattn.geometry.affine import Box
from visattn.io.safe_text import short_repr
from visattn.recording.attention_map import AttentionMap

_MAX_COORDINATE = 10_000_000  # pixels


class CocoRLE(TypedDict):
    """A mask as COCO stores it: height and width, and the compressed run lengths."""

    size: list[int]
    counts: str


def polygon_mask(
    polygons: Sequence[Sequence[float]], size: tuple[int, int]
) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers lie inside at least one of the polygons.

    Each polygon is filled by the even-odd rule, so that self-intersections may leave holes.

    Args:
        polygons: Each x, y, x, y, ... in pixels; the first pixel spans 0 to 1.
        size: Height and width of the image.

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
        corners = _polygon_coordinates(polygon)
        mask |= _fill_polygon(corners.reshape(-1, 2), size)
    return mask


def mask_boxes(masks: Bool[np.ndarray, "n y x"]) -> Float[np.ndarray, "n 4"]:
    """Return the bounding box of the pixels of each mask.

    Args:
        masks: One mask per object.

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
    columns, rows = np.any(masks, 1), np.any(masks, 2)
    sides = (
        columns.argmax(1),
        rows.argmax(1),
        width - columns[:, ::-1].argmax(1),
        height - rows[:, ::-1].argmax(1),
    )
    return np.where(np.any(rows, 1)[:, None], np.stack(sides, 1), 0).astype(np.float64)


def rle_mask(counts: Sequence[int] | str, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Decode COCO's run-length encoding (RLE): column by column, starting with background.

    Args:
        counts: Alternating lengths of background and foreground, or COCO's compressed string.
        size: Height and width of the image.

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
    lengths = _decompress_counts(counts) if isinstance(counts, str) else list(counts)
    if any(length < 0 for length in lengths) or sum(lengths) != height * width:
        raise ValueError(f"RLE counts must sum to {height} x {width} pixels, got {sum(lengths)}")
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

    Args:
        segmentation: As in the file.
        size: Height and width of the image.

    Raises:
        ValueError: If it is neither, or belongs to an image of another size.

    Example:
        >>> segmentation_mask({"size": [2, 3], "counts": [1, 2, 3]}, (2, 3)).sum()
        np.int64(2)
    """
    if isinstance(segmentation, list):
        for polygon in segmentation:
            _polygon_coordinates(polygon)
        return polygon_mask(segmentation, size)
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            "a segmentation must be a list of polygons or an object with size and counts, "
            f"got {short_repr(segmentation)}"
        )
    rle_size, counts = segmentation["size"], segmentation["counts"]
    if not isinstance(rle_size, (list, tuple)) or list(rle_size) != list(size):
        raise ValueError(
            f"RLE of size {short_repr(rle_size)} does not match an image of {list(size)}"
        )
    counts = counts.decode() if isinstance(counts, bytes) else counts
    integers = isinstance(counts, list) and all(type(count) is int for count in counts)
    if not integers and not isinstance(counts, str):
        raise ValueError(f"RLE counts must be integers or a string, got {short_repr(counts)}")
    return rle_mask(counts, size)


def boxes_mask(boxes: Sequence[Box], size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers lie in at least one of the boxes.

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


def _polygon_coordinates(polygon: Any) -> Float[np.ndarray, " n"]:
    """Return the validated coordinates of a polygon."""
    if not isinstance(polygon, Sequence) or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError(
            f"a polygon must be a list of x, y of at least three corners, got {short_repr(polygon)}"
        )
    if not all(
        isinstance(n, (int, float)) and abs(n) < _MAX_COORDINATE for n in polygon
    ):  # not NaN
        raise ValueError(
            f"polygon coordinates must be finite numbers below {_MAX_COORDINATE:,}, "
            f"got {short_repr(polygon)}"
        )
    return np.asarray(polygon, dtype=float)


def _fill_polygon(corners: np.ndarray, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    """Return the pixels whose centers are inside of a polygon, by the even-odd rule."""
    inside = np.zeros(size, dtype=bool)
    (left, top), (right, bottom) = np.floor(corners.min(0)), np.ceil(corners.max(0))
    y, x = (np.clip((top, bottom), 0, size[0]), np.clip((left, right), 0, size[1]))
    (first, last), (left, right) = y.astype(int), x.astype(int)
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


def _decompress_counts(text: str) -> list[int]:
    """Decompress COCO's RLE string: 5 bits per character, differences from the third count on."""
    lengths: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"characters of an RLE string must be 0 to o, got {letter!r}")
        value |= (bits & 31) << shift
        shift += 5
        if shift > 60:  # no image is so large, and longer numbers would take too long
            raise ValueError("counts of an RLE string must be below 2^60")
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("the RLE string ends in the middle of a number: it is truncated")
    return lengths
