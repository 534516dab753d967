"""Times of the frames of an MP4 file that OpenCV wrote, which knows a constant rate only."""

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

_CONTAINERS = (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl")
_HEADER = 8  # bytes: length and kind of a box


def is_constant_rate(seconds: Sequence[float], fps: float) -> bool:
    """Return whether frames are shown at their times, within half a frame, at a constant rate.

    Args:
        seconds: Time of each frame.
        fps: Frames per second.

    Example:
        >>> is_constant_rate([0.0, 0.1, 0.2], 10.0), is_constant_rate([0.0, 0.1, 0.6], 10.0)
        (True, False)
    """
    return all(
        abs(time - seconds[0] - index / fps) <= 0.5 / fps for index, time in enumerate(seconds)
    )


def set_frame_times(path: Path, seconds: Sequence[float]) -> bool:
    """Write the times of the frames into an MP4 file with one video track.

    The table of durations and the lengths of track and movie are replaced; the encoded frames stay
    as they are. The last frame is shown as long as the one before it.

    Args:
        path: A file of OpenCV, whose description follows its frames.
        seconds: Increasing time of each frame.

    Returns:
        False if the times do not increase or the file has another layout; it is then unchanged.

    Source:
        ISO/IEC 14496-12, sections 8.2.2 (mvhd), 8.3.2 (tkhd), 8.4.2 (mdhd), 8.6.1.2 (stts) and
        8.6.6 (elst).
    """
    steps = [later - earlier for earlier, later in pairwise(seconds)]
    content = path.read_bytes()
    boxes = {kind: (start, end) for kind, start, end in _boxes(content, 0, len(content))}
    start, end = boxes.get(b"moov", (0, 0))
    described = all(kind in content[start:end] for kind in (b"mvhd", b"mdhd", b"stts"))
    if not steps or min(steps) <= 0 or end != len(content) or not described:
        return False
    movie = _Durations(content[start:end], [*steps, steps[-1]])
    with path.open("r+b") as file:
        file.seek(start - _HEADER)
        file.truncate()
        file.write(_box(b"moov", movie.rewritten()))
    return True


class _Durations:
    """Replaces durations in the description of a movie.

    Args:
        content: The boxes of `moov`.
        steps: Seconds for which each frame is shown.
    """

    def __init__(self, content: bytes, steps: Sequence[float]) -> None:
        self.content, self.steps = content, steps
        # Track and movie each count time in a unit of their own.
        self.track_scale = self._scale(b"mdhd")
        self.movie_scale = self._scale(b"mvhd")

    def _scale(self, kind: bytes) -> int:
        position = self.content.index(kind) + 4
        return struct.unpack_from(">I", self.content, position + 12)[0]

    def rewritten(self) -> bytes:
        """Return the boxes with the new durations."""
        return b"".join(self._rewrite(self.content))

    def _rewrite(self, content: bytes) -> Iterator[bytes]:
        for kind, start, end in _boxes(content, 0, len(content)):
            body = content[start:end]
            if kind in _CONTAINERS:
                body = b"".join(self._rewrite(body))
            elif kind == b"stts":
                body = body[:4] + self._table()
            elif kind in (b"mdhd", b"mvhd", b"tkhd", b"elst"):
                scale = self.track_scale if kind == b"mdhd" else self.movie_scale
                offset = {b"mdhd": 16, b"mvhd": 16, b"tkhd": 20, b"elst": 8}[kind]
                duration = struct.pack(">I", round(sum(self.steps) * scale))
                body = body[:offset] + duration + body[offset + 4 :]
            yield _box(kind, body)

    def _table(self) -> bytes:
        """Return runs of frames with one duration; rounded times do not drift apart."""
        ends, total = [0], 0.0
        for step in self.steps:
            total += step
            ends.append(max(ends[-1] + 1, round(total * self.track_scale)))
        ticks = [later - earlier for earlier, later in pairwise(ends)]
        runs = [(len(list(group)), value) for value, group in groupby(ticks)]
        return struct.pack(">I", len(runs)) + b"".join(struct.pack(">II", *run) for run in runs)


def _boxes(content: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kinds of boxes, and where their contents start and end."""
    while start + _HEADER <= end:
        length, kind = struct.unpack_from(">I4s", content, start)
        if not _HEADER <= length <= end - start:  # such as lengths of 64 bits
            return
        yield kind, start + _HEADER, start + length
        start += length


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", _HEADER + len(body), kind) + body
