"""Frames of videos: order, color, rotation, rates, and damaged files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from video_data import block_frame, rotate_mp4, write_clip

from visattn.images.video import VideoError, VideoReader, is_video


def block_position(pixels: np.ndarray) -> tuple[float, float]:
    """Row and column of the middle of the bright block."""
    rows, columns = np.nonzero(pixels.min(-1) > 190)
    return float(rows.mean()), float(columns.mean())


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_frames_come_in_order(suffix: str, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / f"clip{suffix}", [block_frame(8 * i, 16) for i in range(7)])
    with VideoReader(clip, every=3) as video:
        frames = list(video)
    assert [frame.index for frame in frames] == [0, 3, 6]
    assert [frame.seconds for frame in frames] == pytest.approx([0.0, 0.3, 0.6])
    for frame, left in zip(frames, (0, 24, 48), strict=True):
        assert block_position(frame.pixels) == pytest.approx((23.5, left + 7.5), abs=1)
    assert (video.num_read, video.num_announced) == (7, 7)


def test_colors_are_rgb(tmp_path: Path) -> None:
    red = np.zeros((48, 64, 3), np.uint8)
    red[..., 0] = 220
    with VideoReader(write_clip(tmp_path / "clip.avi", [red])) as video:
        [frame] = video
    assert np.allclose(frame.pixels.mean((0, 1)), (220, 0, 0), atol=6)


@pytest.mark.parametrize(
    ("degrees", "size", "place"),
    [(90, (64, 48), (7.5, 39.5)), (180, (48, 64), (39.5, 55.5))],
)
def test_frames_are_upright(
    degrees: int, size: tuple[int, int], place: tuple[float, float], tmp_path: Path
) -> None:
    """A block at the top left goes to the top right with 90 degrees, bottom right with 180."""
    clip = rotate_mp4(write_clip(tmp_path / "clip.mp4", [block_frame(0, 0)] * 3), degrees)
    with VideoReader(clip) as video:
        pixels = next(iter(video)).pixels
    assert pixels.shape[:2] == size
    assert block_position(pixels) == pytest.approx(place, abs=1.5)


def test_the_number_of_frames_can_be_limited(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", [block_frame(8, 8)] * 9)
    with VideoReader(clip, every=2, max_frames=3) as video:
        assert [frame.index for frame in video] == [0, 2, 4]


def test_a_truncated_file_yields_the_frames_that_it_has(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", [block_frame(i, 8) for i in range(40)])
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) // 2])
    with VideoReader(clip) as video:
        frames = list(video)
    assert 5 < len(frames) < 40
    assert block_position(frames[3].pixels)[1] == pytest.approx(3 + 7.5, abs=1)


READING = """
import sys
from visattn.images.video import VideoReader
for file in sys.argv[1:]:
    try:
        with VideoReader(file) as video:
            print(len(list(video)))
    except ValueError as error:
        print(error)
"""


def test_libraries_print_nothing_about_torn_movies(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    frames = [random.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(23)]
    whole = write_clip(tmp_path / "whole.mp4", frames).read_bytes()
    (tmp_path / "torn.mp4").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged.mp4").write_bytes(whole[:3000] + bytes(5000) + whole[8000:])
    command = [sys.executable, "-c", READING, *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    damaged, torn, frames_of_whole = done.stdout.splitlines()
    assert int(damaged) < 23
    assert "torn.mp4 cannot be read as a video: it is damaged" in torn
    assert frames_of_whole == "23"
    environment = {**os.environ, "OPENCV_FFMPEG_LOGLEVEL": "16"}  # who looks for the cause
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "moov atom not found" in done.stdout + done.stderr


@pytest.mark.parametrize("content", [b"", b"no video" * 99, b"RIFF\x00\x00\x00\x00AVI "])
def test_files_that_are_no_videos_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    path.write_bytes(content)
    with pytest.raises(VideoError, match="clip.avi (cannot be read as a video|has no frame)"):
        list(VideoReader(path))


def test_playlists_and_patterns_are_refused(tmp_path: Path) -> None:
    playlist = tmp_path / "list.mp4"
    playlist.write_text("#EXTM3U\nhttps://example.org/a.ts\n")
    with pytest.raises(VideoError, match="is a playlist"):
        VideoReader(playlist)
    with pytest.raises(FileNotFoundError):
        VideoReader(tmp_path / "image%03d.png")
    with pytest.raises(FileNotFoundError):
        VideoReader("https://example.org/clip.mp4")


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        VideoReader(tmp_path / "clip.mp4", every=0)


def test_videos_are_known_by_their_suffix() -> None:
    assert is_video("a/b.MOV")
    assert not is_video("a/b.gif")
