"""Clips made with OpenCV: a bright block that moves, cuts, rotated and damaged files."""

import struct
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np


def block_frame(
    left: int, top: int, size: tuple[int, int] = (48, 64), level: int = 90
) -> np.ndarray:
    """A gray frame with a bright block of 16 pixels."""
    frame = np.full((*size, 3), level, np.uint8)
    frame[top : top + 16, left : left + 16] = 250
    return frame


def write_clip(path: Path, frames: Sequence[np.ndarray], fps: float = 10.0) -> Path:
    """Write RGB frames: MPEG-4 for .mp4, Motion JPEG for .avi."""
    height, width = frames[0].shape[:2]
    fourcc = cv2.VideoWriter.fourcc(*("mp4v" if path.suffix == ".mp4" else "MJPG"))
    writer = cv2.VideoWriter(str(path), fourcc, fps, (width, height))
    assert writer.isOpened()
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[..., ::-1]))
    writer.release()
    return path


def rotate_mp4(path: Path, degrees: int) -> Path:
    """Write a rotation into the track header of an MP4, as phones do."""
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4 + 40  # version 0: the matrix follows 40 bytes
    unit = 1 << 16
    matrix = {
        90: (0, unit, 0, -unit, 0, 0, 0, 0, 1 << 30),
        180: (-unit, 0, 0, 0, -unit, 0, 0, 0, 1 << 30),
    }[degrees]
    content[start : start + 36] = struct.pack(">9i", *matrix)
    path.write_bytes(content)
    return path
