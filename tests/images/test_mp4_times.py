"""Frames of a movie are shown at the times of the frames of its video."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from video_data import block_frame, write_clip

from visattn.images import video
from visattn.images.video import VideoError, VideoReader, is_constant_rate, set_frame_times


def frames(count: int) -> list[np.ndarray]:
    return [block_frame(3 * number, 7) for number in range(count)]


@given(st.lists(st.integers(20, 3000), min_size=1, max_size=11), st.integers(0, 5000))
def test_times_come_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], start: int
) -> None:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    seconds = list(np.cumsum([start, *steps]) / 1000)
    write_clip(path, frames(len(seconds)), fps=7)
    with VideoReader(path) as clip:
        before = [frame.pixels for frame in clip]
    assert set_frame_times(path, seconds)
    with VideoReader(path) as clip:
        after = list(clip)
    shown = [frame.seconds + seconds[0] for frame in after]
    np.testing.assert_allclose(shown, seconds, atol=1e-3)
    assert np.array_equal(before, [frame.pixels for frame in after])


@pytest.mark.parametrize("seconds", [[0.0], [0.0, 0.0], [0.3, 0.1]])
def test_times_that_do_not_increase_are_left_alone(seconds: list[float], tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frames(len(seconds)))
    content = path.read_bytes()
    assert not set_frame_times(path, seconds)
    assert path.read_bytes() == content


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    for content in (b"", b"<html>", b"\0\0\0\x08moov" + b"\0\0\0\x09free."):
        (tmp_path / "a.mp4").write_bytes(content)
        assert not set_frame_times(tmp_path / "a.mp4", [0.0, 0.1])
        assert (tmp_path / "a.mp4").read_bytes() == content


def test_small_jitter_is_a_constant_rate() -> None:
    times = [number / 30 + (number % 3) * 0.004 for number in range(50)]
    assert is_constant_rate(times, 30.0)
    assert not is_constant_rate([0.0, 0.1, 0.6, 0.7], 4.2)


def test_frames_of_gigabytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.mp4", frames(2))
    monkeypatch.setattr(video, "_MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(VideoError, match="a.mp4 has frames of 64 x 48 pixels, more than 3,071"):
        VideoReader(path)
    monkeypatch.setattr(video, "_MAX_PIXELS", 64 * 48)
    assert len(list(VideoReader(path))) == 2
