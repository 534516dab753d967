"""What a network saw of an image in its glimpses: one by one, and put together."""

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.resize import resized_image


def mosaic(
    patches: UInt8[np.ndarray, "t s c g g"],
    boxes: Float[np.ndarray, "t s 4"],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return all that was seen of an image, each piece as coarse as the network had it.

    Where something was seen more than once, the finer look counts, and of two the later one. What
    was never looked at is hatched.

    Args:
        patches: What the network saw in each window, in one color channel or three.
        boxes: Left, top, right and bottom of each window, the finest of a glimpse first, in pixels
            of what is returned.
        size: Height and width to return.

    Example:
        >>> white = np.full((1, 1, 1, 2, 2), 255, np.uint8)
        >>> mosaic(white, np.array([[[0.0, 0, 2, 2]]]), (2, 4))[0, :, 0] == 255
        array([ True,  True, False, False])
    """
    blank = np.zeros((*size, 3), np.uint8)
    drawn = overlay(blank, np.full(size, np.nan))
    for scale in reversed(range(boxes.shape[1])):
        for patch, box in zip(patches[:, scale], boxes[:, scale], strict=True):
            _paste(drawn, colored(patch), box)
    return drawn


def patch_tile(patch: UInt8[np.ndarray, "c g g"], side: int) -> UInt8[np.ndarray, "side side 3"]:
    """Return a patch as a square image in which its pixels can be told.

    Example:
        >>> patch_tile(np.zeros((1, 8, 8), np.uint8), 24).shape
        (24, 24, 3)
    """
    return resized_image(colored(patch), (side, side))


def colored(patch: UInt8[np.ndarray, "c y x"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image of the network's as RGB; a gray one is gray in all three.

    Example:
        >>> colored(np.full((1, 1, 1), 9, np.uint8))
        array([[[9, 9, 9]]], dtype=uint8)
    """
    return np.ascontiguousarray(np.broadcast_to(patch, (3, *patch.shape[1:])).transpose(1, 2, 0))


def _paste(
    drawn: UInt8[np.ndarray, "y x 3"],
    patch: UInt8[np.ndarray, "g g 3"],
    box: Float[np.ndarray, " 4"],
) -> None:
    """Give each pixel whose center lies in the box the cell of the patch in which it lies."""
    rows, down = _cells(float(box[1]), float(box[3]), len(drawn), len(patch))
    columns, across = _cells(float(box[0]), float(box[2]), drawn.shape[1], len(patch))
    drawn[rows[:, None], columns] = patch[down[:, None], across]


def _cells(start: float, end: float, length: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of one axis between two ends, and the cell in which each lies."""
    centers = np.arange(length) + 0.5
    inside = np.flatnonzero((centers >= start) & (centers < end))
    share = (centers[inside] - start) / (end - start)
    return inside, np.minimum((share * cells).astype(int), cells - 1)
