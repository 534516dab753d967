"""Reading of video frames, upright and in RGB, and writing of MP4 files, with OpenCV."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.images.formats import MAX_PIXELS, VIDEO_SUFFIXES
from visattn.images.reader import ImageError
from visattn.io.safe_text import open_regular_file

_PLAYLISTS = (b"#EXTM3U", b"ffconcat")  # they name other files


class VideoError(ImageError):
    """A video cannot be read; the message names the video and the reason."""


def frame_rate(path: str | os.PathLike[str]) -> float:
    """Return the frames per second of a video; 25 if the file does not state them.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If it is not a video.
    """
    rate = _opened(path).get(_opencv().CAP_PROP_FPS)
    return rate if 0 < rate <= 1000 else 25.0


def read_frames(
    path: str | os.PathLike[str], *, every: int = 1
) -> Iterator[UInt8[np.ndarray, "y x 3"]]:
    """Yield every n-th frame of a video, rotated upright.

    Raises:
        FileNotFoundError: If the file does not exist.
        VideoError: If it is not a video, or has no frame.

    Example:
        >>> clip = getfixture("tmp_path") / "clip.mp4"
        >>> write_mp4(clip, (np.full((48, 64, 3), level, np.uint8) for level in (0, 120, 240)), 10)
        >>> [int(round(frame.mean(), -1)) for frame in read_frames(clip, every=2)]
        [0, 240]
    """
    cv2, capture, count = _opencv(), _opened(path), 0
    while capture.grab():  # every frame must be decoded for those after it
        if count % every == 0:
            yield cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
        count += 1
    if not count:
        raise VideoError(f"{path} has no frame that can be read")


def _opencv() -> Any:
    """Import OpenCV only when a video is read: some machines lack its system libraries."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # our errors replace its log
    import cv2

    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)
    return cv2


def _opened(path: str | os.PathLike[str]) -> Any:
    """Open a video with FFmpeg only, never as an image sequence or URL."""
    with open_regular_file(Path(path)) as file:
        if file.read(8).startswith(_PLAYLISTS):
            raise VideoError(f"{path} is a playlist; pass the video files that it names")
    cv2 = _opencv()
    capture = cv2.VideoCapture(str(Path(path).absolute()), cv2.CAP_FFMPEG)
    pixels = capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    if not 0 < pixels <= MAX_PIXELS:
        raise VideoError(
            f"{path} cannot be read as a video: it is damaged, too large, or in a format that "
            f"OpenCV cannot decode; formats that usually work are {', '.join(VIDEO_SUFFIXES)}"
        )
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
    return capture


def write_mp4(path: Path, frames: Iterable[UInt8[np.ndarray, "y x 3"]], fps: float) -> None:
    """Write RGB frames as MPEG-4; odd sides are padded by a row or column, as encoders require.

    Raises:
        OSError: If the file lacks frames, as on a full disk, which OpenCV does not report.
        VideoError: If it cannot be read again.
    """
    cv2, count = _opencv(), 0
    writer = cv2.VideoWriter()
    for pixels in frames:
        height, width = pixels.shape[:2]
        padded = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if not count:
            code = cv2.VideoWriter.fourcc(*"mp4v")
            writer.open(str(path), cv2.CAP_FFMPEG, code, fps, padded.shape[1::-1])
        writer.write(cv2.cvtColor(padded, cv2.COLOR_RGB2BGR))
        count += 1
    writer.release()
    if (kept := sum(1 for _ in read_frames(path))) != count:
        raise OSError(f"{path} holds {kept} of {count} frames: is the disk full?")
