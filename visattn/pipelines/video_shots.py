"""Shots of a video: where the frames change at once, and maps that are smoothed within them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from visattn.images.video import VideoFrame
from visattn.results.attention_map import AttentionMap

_THUMBNAIL = 32  # pixels of the gray images that are compared
_MAX_SHIFT = 8  # a quarter of the frame


@dataclass(frozen=True, eq=False)
class ExplainedFrame:
    """A frame of a video with its map."""

    frame: VideoFrame
    map: AttentionMap
    starts_shot: bool
    """Whether the frame differs so much from the one before that a new shot begins."""


def find_shots(
    frames: Iterable[tuple[VideoFrame, AttentionMap]], threshold: float
) -> Iterator[ExplainedFrame]:
    """Yield frames with whether they begin a shot: their `frame_difference` is above a threshold.

    Example:
        >>> import torch
        >>> levels = [np.full((4, 4, 3), level, np.uint8) for level in (20, 25, 200)]
        >>> a_map = AttentionMap(torch.ones(1, 1), "layer", "gradient")
        >>> frames = [(VideoFrame(i, 0.0, pixels), a_map) for i, pixels in enumerate(levels)]
        >>> [frame.starts_shot for frame in find_shots(frames, 0.2)]
        [True, False, True]
    """
    before: Float[np.ndarray, "32 32"] | None = None
    for frame, attention_map in frames:
        gray = gray_thumbnail(frame.pixels)
        is_cut = before is None or frame_difference(before, gray) > threshold
        before = gray
        yield ExplainedFrame(frame, attention_map, is_cut)


def gray_thumbnail(pixels: UInt8[np.ndarray, "y x 3"]) -> Float[np.ndarray, "32 32"]:
    """Return a frame as 32 x 32 gray levels in [0, 1]."""
    gray = Image.fromarray(pixels).convert("L")
    small = gray.resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / 255


def frame_difference(
    before: Float[np.ndarray, "32 32"], after: Float[np.ndarray, "32 32"]
) -> float:
    """Return the mean absolute difference of two frames, aligned as a pan of the camera moves them.

    It is the lowest over all shifts by up to a quarter of the frame, of the part that both show.

    Args:
        before: A frame as `gray_thumbnail` gives it.
        after: The next frame.

    Example:
        >>> frame = np.linspace(0, 1, 32, dtype=np.float32) ** 2 * np.ones((32, 1), np.float32)
        >>> panned = np.roll(frame, 5, axis=1)
        >>> round(frame_difference(frame, panned), 3), round(frame_difference(frame, 1 - frame), 1)
        (0.0, 0.5)
    """
    shifts = range(-_MAX_SHIFT, _MAX_SHIFT + 1)
    return min(
        _shifted_difference(before, after, down, right) for down in shifts for right in shifts
    )


def _shifted_difference(
    before: Float[np.ndarray, "32 32"], after: Float[np.ndarray, "32 32"], down: int, right: int
) -> float:
    rows, columns = _overlap(down), _overlap(right)
    rows_before, columns_before = _overlap(-down), _overlap(-right)
    return float(np.abs(after[rows, columns] - before[rows_before, columns_before]).mean())


def _overlap(shift: int) -> slice:
    return slice(max(0, shift), _THUMBNAIL + min(0, shift))


def smooth_maps(frames: Iterable[ExplainedFrame], weight: float) -> Iterator[ExplainedFrame]:
    """Yield frames with exponential moving averages of their maps, which start with each shot.

    Example:
        >>> import torch
        >>> maps = [AttentionMap(torch.full((1, 1), v), "x", "gate") for v in (0.0, 1.0, 8.0)]
        >>> pixels = VideoFrame(0, 0.0, np.zeros((4, 4, 3), np.uint8))
        >>> frames = [ExplainedFrame(pixels, m, i != 1) for i, m in enumerate(maps)]
        >>> [float(frame.map.values) for frame in smooth_maps(frames, 0.5)]
        [0.0, 0.5, 8.0]
    """
    average = None
    for each in frames:
        values = each.map.values
        if weight and average is not None and not each.starts_shot:
            values = weight * average + (1 - weight) * values
        average = values
        yield replace(each, map=replace(each.map, values=values)) if weight else each
