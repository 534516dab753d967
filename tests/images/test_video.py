"""Frames of videos: order, color, rotation, damaged files; movies hold the frames written."""

import resource
from pathlib import Path

import numpy as np
import pytest
from video_data import block_frame, rotate_mp4, write_clip

from visattn.images.video import VideoError, frame_rate, read_frames, write_mp4


def block_position(pixels: np.ndarray) -> tuple[float, float]:
    """Row and column of the middle of the bright block."""
    rows, columns = np.nonzero(pixels.min(-1) > 190)
    return float(rows.mean()), float(columns.mean())


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_frames_come_in_order(suffix: str, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / f"clip{suffix}", [block_frame(8 * i, 16) for i in range(7)])
    frames = list(read_frames(clip, every=3))
    assert frame_rate(clip) == pytest.approx(10.0)
    for frame, left in zip(frames, (0, 24, 48), strict=True):
        assert block_position(frame) == pytest.approx((23.5, left + 7.5), abs=1)


def test_colors_are_rgb(tmp_path: Path) -> None:
    red = np.zeros((48, 64, 3), np.uint8)
    red[..., 0] = 220
    [frame] = read_frames(write_clip(tmp_path / "clip.avi", [red]))
    assert np.allclose(frame.mean((0, 1)), (220, 0, 0), atol=6)


@pytest.mark.parametrize(
    ("degrees", "size", "place"),
    [(90, (64, 48), (7.5, 39.5)), (180, (48, 64), (39.5, 55.5))],
)
def test_frames_are_upright(
    degrees: int, size: tuple[int, int], place: tuple[float, float], tmp_path: Path
) -> None:
    """A block at the top left goes to the top right with 90 degrees, bottom right with 180."""
    clip = rotate_mp4(write_clip(tmp_path / "clip.mp4", [block_frame(0, 0)] * 3), degrees)
    pixels = next(read_frames(clip))
    assert pixels.shape[:2] == size
    assert block_position(pixels) == pytest.approx(place, abs=1.5)


def test_a_truncated_file_yields_the_frames_that_it_has(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", [block_frame(i, 8) for i in range(40)])
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) // 2])
    frames = list(read_frames(clip))
    assert 5 < len(frames) < 40
    assert block_position(frames[3])[1] == pytest.approx(3 + 7.5, abs=1)


@pytest.mark.parametrize("content", [b"", b"no video" * 99, b"RIFF\x00\x00\x00\x00AVI "])
def test_files_that_are_no_videos_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    path.write_bytes(content)
    with pytest.raises(VideoError, match="clip.avi (cannot be read as a video|has no frame)"):
        list(read_frames(path))


def test_playlists_and_patterns_are_refused(tmp_path: Path) -> None:
    playlist = tmp_path / "list.mp4"
    playlist.write_text("#EXTM3U\nhttps://example.org/a.ts\n")
    with pytest.raises(VideoError, match="is a playlist"):
        list(read_frames(playlist))
    for name in (tmp_path / "image%03d.png", "https://example.org/clip.mp4"):
        with pytest.raises(FileNotFoundError):
            list(read_frames(name))


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    frames = [block_frame(8 + i, 8, (47, 63)) for i in range(3)]
    write_mp4(tmp_path / "movie.mp4", iter(frames), 10.0)
    for index, frame in enumerate(read_frames(tmp_path / "movie.mp4")):
        assert frame.shape == (48, 64, 3)
        assert abs(frame[46:, 62:].astype(int) - 90).max() <= 8
        assert block_position(frame) == pytest.approx((15.5, 15.5 + index), abs=1)


def test_a_movie_whose_file_cannot_grow_is_an_error(tmp_path: Path) -> None:
    random, before = np.random.default_rng(0), resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = (random.integers(0, 256, (240, 320, 3), np.uint8) for _ in range(20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))  # as on a full disk
    try:
        with pytest.raises((OSError, VideoError)):
            write_mp4(tmp_path / "movie.mp4", noise, 10.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
