"""Frames of video files and cameras, upright and in RGB, and MP4 files of frames."""

import errno
import math
import os
import re
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from jaxtyping import UInt8

from visattn.images.formats import image_suffixes
from visattn.images.reader import ImageError, read_image
from visattn.io.atomic import atomic_replace, is_disk_full
from visattn.io.safe_text import open_regular_file

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg")
_PLAYLISTS = (b"#EXTM3U", b"ffconcat")  # they name other files
_DEFAULT_FPS = 25.0
_MAX_FPS = 1000.0
_MAX_PIXELS = 64_000_000  # of a frame
_FFMPEG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"
_FFMPEG_QUIET = "-8"
_LEVELS_LOCK = threading.Lock()  # they are those of the process


class VideoError(ValueError):
    """A video cannot be read; the message names the video and the reason."""


@dataclass(frozen=True, eq=False)
class VideoFrame:
    """A frame of a video."""

    index: int
    """Its number in the video, from 0."""
    seconds: float
    """Its time in the video."""
    pixels: UInt8[np.ndarray, "y x 3"]
    """RGB, upright."""


@dataclass(frozen=True, eq=False, repr=False)
class VideoClip:
    """Selected frames of a video.

    Args:
        name: Path of the file.
        frames: In the order in which they were selected.
        num_frames: Number of frames of the whole video.
    """

    name: str
    frames: tuple[VideoFrame, ...]
    fps: float
    num_frames: int

    @property
    def indices(self) -> list[int]:
        """Numbers of the selected frames in the video."""
        return [frame.index for frame in self.frames]

    @property
    def seconds(self) -> list[float]:
        """Their times in the video."""
        return [frame.seconds for frame in self.frames]

    def __repr__(self) -> str:
        """Return name and number of frames in one line."""
        return f"VideoClip({self.name!r}, {len(self.frames)} of {self.num_frames} frames)"


@dataclass(frozen=True)
class FrameFolder:
    """Frames of a video as images in a folder, in the order of the numbers in their names.

    Args:
        path: The folder.
        fps: Frames per second.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for number in (10, 2, 1):
        ...     (folder / f"frame{number}.png").touch()
        >>> [file.name for file in FrameFolder(folder).files()]
        ['frame1.png', 'frame2.png', 'frame10.png']
    """

    path: Path
    fps: float = _DEFAULT_FPS

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def files(self) -> list[Path]:
        """Return the images directly in the folder.

        Raises:
            OSError: If it cannot be listed.
            VideoError: If it holds no image.
        """
        if not self.path.is_dir():
            raise VideoError(f"{self.path} is no folder of frames")
        files = [
            file
            for file in self.path.iterdir()
            if file.suffix.lower() in image_suffixes() and not file.name.startswith(".")
        ]
        if not files:
            raise VideoError(f"{self.path} holds no frame: no image file")
        return sorted(files, key=lambda file: (natural_order(file.name), file.name))


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them.

    Example:
        >>> sorted(["b10", "b9", "a"], key=natural_order)
        ['a', 'b9', 'b10']
    """
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]


class _FrameCapture:
    """The frames of a folder, with the methods of `cv2.VideoCapture` that are used here."""

    def __init__(self, folder: FrameFolder) -> None:
        self._files = folder.files()
        self._fps = folder.fps
        self._next = 0
        self._size = self._read(self._files[0]).shape[:2]

    def get(self, prop: int) -> float:
        import cv2

        height, width = self._size
        return {
            cv2.CAP_PROP_FRAME_WIDTH: width,
            cv2.CAP_PROP_FRAME_HEIGHT: height,
            cv2.CAP_PROP_FPS: self._fps,
            cv2.CAP_PROP_FRAME_COUNT: len(self._files),
        }.get(prop, 0)

    def grab(self) -> bool:
        self._next += 1
        return self._next <= len(self._files)

    def retrieve(self) -> tuple[bool, UInt8[np.ndarray, "y x 3"]]:
        file = self._files[self._next - 1]
        pixels = self._read(file)
        if pixels.shape[:2] != self._size:
            raise VideoError(
                f"frames of a video must have one size, but {file} has {pixels.shape[1]} x "
                f"{pixels.shape[0]} pixels and {self._files[0].name} {self._size[1]} x "
                f"{self._size[0]}"
            )
        return True, pixels

    def release(self) -> None:
        """Keep nothing open."""

    @staticmethod
    def _read(file: Path) -> UInt8[np.ndarray, "y x 3"]:
        try:
            return np.ascontiguousarray(read_image(file).pixels[..., ::-1])  # BGR, as OpenCV
        except ImageError as error:
            raise VideoError(str(error)) from error


class VideoReader:
    """Iterates over the frames of a video file, a folder of frames or a camera.

    Frames are rotated as the file says. A truncated file yields the frames that it has;
    `num_announced` is the number that its header promises.

    Args:
        source: A file, a folder of frames, or the number of a camera.
        every: Yield every n-th frame only.
        max_frames: Number of frames to yield at most; None for all.
        only: Numbers of the frames to yield; None for all.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If it is not a video, or has no frame.
        ValueError: If a number is out of range.

    Example:
        >>> import cv2
        >>> file = str(getfixture("tmp_path") / "clip.avi")
        >>> writer = cv2.VideoWriter(file, cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
        >>> for level in (0, 120, 240):
        ...     _ = writer.write(np.full((48, 64, 3), level, np.uint8))
        >>> writer.release()
        >>> with VideoReader(file, every=2) as video:
        ...     print(video.fps, [(f.index, f.seconds, f.pixels.shape) for f in video])
        10.0 [(0, 0.0, (48, 64, 3)), (2, 0.2, (48, 64, 3))]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | FrameFolder | int,
        *,
        every: int = 1,
        max_frames: int | None = None,
        only: Collection[int] | None = None,
    ) -> None:
        import cv2

        if every < 1 or (max_frames is not None and max_frames < 1):
            raise ValueError(
                f"every and max_frames must be at least 1, got {every} and {max_frames}"
            )
        self.every = every
        self.max_frames = max_frames
        self.only = None if only is None else frozenset(only)
        self.name = f"camera {source}" if isinstance(source, int) else str(source)
        self._capture = _open(source)
        width, height = (
            self._capture.get(side)
            for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
        if width * height > _MAX_PIXELS:  # as for images; a few bytes may announce gigabytes
            self._capture.release()
            raise VideoError(
                f"{self.name} has frames of {width:.0f} x {height:.0f} pixels, more than "
                f"{_MAX_PIXELS:,}"
            )
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = fps if math.isfinite(fps) and 0 < fps <= _MAX_FPS else _DEFAULT_FPS
        """Frames per second; 25 if the file does not say it."""
        count = self._capture.get(cv2.CAP_PROP_FRAME_COUNT)
        self.num_announced = int(count) if math.isfinite(count) and 0 < count < 2**31 else 0
        """Number of frames in the header; 0 if unknown."""
        self.num_read = 0
        """Number of frames that were decoded, skipped ones included."""

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._capture.release()

    def __iter__(self) -> Iterator[VideoFrame]:
        """Yield the frames, once."""
        import cv2

        count = 0
        while self.max_frames is None or count < self.max_frames:
            # Each frame must be decoded, for those after it; only wanted ones become pixels.
            if not self._capture.grab():
                break
            seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            index = self.num_read
            self.num_read += 1
            if index % self.every or (self.only is not None and index not in self.only):
                continue
            decoded, pixels = self._capture.retrieve()
            if not decoded:
                break
            count += 1
            yield VideoFrame(index, self._seconds(seconds, index), _to_rgb(pixels))
        if not count:
            raise VideoError(f"{self.name} has no frame that can be read")

    def _seconds(self, stated: float, index: int) -> float:
        """Return the time that the container states, or else the one that follows from the rate."""
        computed = index / self.fps
        plausible = math.isfinite(stated) and stated > 0
        return round(stated if plausible else computed, 6)


class Mp4Writer:
    """Encodes frames as MPEG-4; `open_mp4` returns one.

    Args:
        path: The file, of the suffix .mp4.
        fps: Frames per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.fps = fps
        self._size = (0, 0)
        self._count = 0
        self._seconds: list[float] = []
        self._writer: Any = None

    def write(self, pixels: UInt8[np.ndarray, "y x 3"], seconds: float | None = None) -> None:
        """Add an RGB frame; odd sides get one more row or column, which encoders need.

        Args:
            pixels: The frame.
            seconds: Its time, where frames have no constant rate.

        Raises:
            VideoError: If the file cannot be written.
        """
        import cv2

        height, width = pixels.shape[:2]
        if self._writer is None:
            self._size = (width + width % 2, height + height % 2)
            code = cv2.VideoWriter.fourcc(*"mp4v")
            with _quiet_library():
                self._writer = cv2.VideoWriter(
                    str(self.path), cv2.CAP_FFMPEG, code, self.fps, self._size
                )
            if not self._writer.isOpened():
                raise VideoError("OpenCV cannot write a movie: no MPEG-4 encoder, or no space")
        padded = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._writer.write(cv2.cvtColor(padded, cv2.COLOR_RGB2BGR))
        self._count += 1
        if seconds is not None:
            self._seconds.append(seconds)

    def close(self) -> None:
        """Complete the file, with the times of its frames if they have no constant rate."""
        if self._writer is None:
            return
        self._writer.release()
        timed = len(self._seconds) == self._count
        if timed and not is_constant_rate(self._seconds, self.fps):
            set_frame_times(self.path, self._seconds)

    def check(self) -> None:
        """Read the closed file and compare number and size of its frames; OpenCV reports no error.

        Raises:
            OSError: If the disk is full.
            VideoError: If the file does not hold the frames.
        """
        import cv2

        capture = _quiet_capture(str(self.path), cv2.CAP_FFMPEG)
        sides = (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        size = tuple(int(capture.get(side)) for side in sides)
        count = 0
        # One frame more than were written is difference enough.
        while count < self._count + 1 and capture.grab():
            count += 1
        capture.release()
        if count == self._count > 0 and size == self._size:
            return
        if is_disk_full(self.path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise VideoError(
            f"the movie was not written: {count} of its {self._count} frames can be read again; "
            "is the disk full? The old content is intact"
        )


@contextmanager
def open_mp4(path: Path, fps: float) -> Iterator[Mp4Writer]:
    """Yield a writer of a movie, which replaces the file once it was written and read again.

    Raises:
        OSError: If the disk is full, or the folder cannot be written; an older file stays.
        VideoError: If the movie does not hold all frames; an older file stays.

    Example:
        >>> file = getfixture("tmp_path") / "gray.mp4"
        >>> with open_mp4(file, 10) as movie:
        ...     for level in (0, 120, 240):
        ...         movie.write(np.full((48, 64, 3), level, np.uint8))
        >>> with VideoReader(file) as video:
        ...     len(list(video))
        3
    """
    with atomic_replace(path, suffix=".mp4") as part:  # OpenCV chooses the container by suffix
        writer = Mp4Writer(part, fps)
        try:
            yield writer
        finally:
            writer.close()
        writer.check()


def video_length(path: str | os.PathLike[str]) -> tuple[int, float, tuple[int, int]]:
    """Return the number of frames of a video, its frames per second, and its height and width.

    Frames are counted, since headers may promise more.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If it is not a video, or has no frame.

    Example:
        >>> from video_data import block_frame, write_clip
        >>> clip = write_clip(getfixture("tmp_path") / "clip.avi", [block_frame(8, 8)] * 3)
        >>> video_length(clip)[0]
        3
    """
    with VideoReader(path, only=(0,)) as video:
        size = next((frame.pixels.shape[:2] for frame in list(video)), (0, 0))
        return video.num_read, video.fps, (int(size[0]), int(size[1]))


def read_clip(path: str | os.PathLike[str], indices: Sequence[int], num_frames: int) -> VideoClip:
    """Return frames of a video; a number that occurs twice gives its frame twice.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If it is not a video, or a frame cannot be read.

    Example:
        >>> from video_data import block_frame, write_clip
        >>> clip = write_clip(getfixture("tmp_path") / "clip.avi", [block_frame(8, 8)] * 3)
        >>> read_clip(clip, [0, 2], 3).indices
        [0, 2]
    """
    with VideoReader(path, only=indices, max_frames=len(set(indices))) as video:
        frames = {frame.index: frame for frame in video}
    if missing := [index for index in indices if index not in frames]:
        raise VideoError(f"frame {missing[0]} of {path} cannot be read")
    return VideoClip(str(path), tuple(frames[index] for index in indices), video.fps, num_frames)


def is_video(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is named like a video.

    Example:
        >>> is_video("clip.MP4"), is_video("photo.jpg")
        (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def _open(source: str | os.PathLike[str] | FrameFolder | int) -> Any:
    """Return an open capture; files are opened by FFmpeg alone, never as a pattern or address."""
    import cv2

    if isinstance(source, FrameFolder):
        return _FrameCapture(source)

    if isinstance(source, int):
        capture = _quiet_capture(source)
        if not capture.isOpened():
            raise VideoError(f"camera {source} cannot be opened; 0 is usually the first one")
        return capture
    path = Path(source).absolute()
    with open_regular_file(path) as file:
        if file.read(8).startswith(_PLAYLISTS):
            raise VideoError(f"{source} is a playlist; pass the video files that it names")
    capture = _quiet_capture(str(path), cv2.CAP_FFMPEG)
    if not capture.isOpened():
        raise VideoError(
            f"{source} cannot be read as a video: it is damaged, or of a kind that OpenCV does not "
            f"decode; kinds that usually work are {', '.join(VIDEO_SUFFIXES)}"
        )
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
    return capture


def _quiet_capture(*arguments: Any) -> Any:
    import cv2

    with _quiet_library():
        return cv2.VideoCapture(*arguments)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Open a video without the log of OpenCV and FFmpeg; the error says what matters.

    OpenCV reads the level of FFmpeg from the environment once, when a process first opens a video.
    """
    import cv2

    log = cv2.utils.logging
    with _LEVELS_LOCK:
        level = log.getLogLevel()
        own = _FFMPEG_LEVEL not in os.environ
        log.setLogLevel(log.LOG_LEVEL_SILENT)
        if own:  # else the user wants to see it
            os.environ[_FFMPEG_LEVEL] = _FFMPEG_QUIET
        try:
            yield
        finally:
            log.setLogLevel(level)
            if own:
                del os.environ[_FFMPEG_LEVEL]


def _to_rgb(pixels: UInt8[np.ndarray, "..."]) -> UInt8[np.ndarray, "y x 3"]:
    import cv2

    if pixels.ndim == 2:
        return cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB)
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


_CONTAINERS = (b"moov", b"trak", b"edts", b"mdia", b"minf", b"stbl")
_HEADER = 8  # bytes: length and kind of a box


def is_constant_rate(seconds: Sequence[float], fps: float) -> bool:
    """Return whether frames are shown at their times, within half a frame, at a constant rate.

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
    as they are. The last frame is shown as long as the one before it. The path is a file of OpenCV,
    whose description follows its frames.

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
    # The description must come last: its length changes, and it holds the offsets of the frames.
    if not steps or min(steps) <= 0 or end != len(content) or not described:
        return False
    movie = _Durations(content[start:end], [*steps, steps[-1]])
    with path.open("r+b") as file:
        file.seek(start - _HEADER)
        file.truncate()
        file.write(_box(b"moov", movie.rewritten()))
    return True


class _Durations:
    """Replaces durations in the description of a movie."""

    def __init__(self, content: bytes, steps: Sequence[float]) -> None:
        self.content = content
        self.steps = steps
        # Track and movie each count time in a unit of their own.
        self.track_scale = self._scale(b"mdhd")
        self.movie_scale = self._scale(b"mvhd")

    def _scale(self, kind: bytes) -> int:
        # Contents of mvhd and mdhd, in version 0, which FFmpeg writes, in bytes:
        #
        #     0 version and flags   4 creation   8 change   12 time scale   16 duration
        #
        # In tkhd the number of the track and 4 empty bytes take the place of the time scale
        # (duration at 20); in elst the number of entries comes first (duration of the first at 8).
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
        # Ends are rounded and not durations; each frame lasts at least a tick.
        ends = [0]
        total = 0.0
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
