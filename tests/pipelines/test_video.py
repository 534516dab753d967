"""Overlays on video: maps follow what moves, one scale, no mixed shots, broken clips."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_disks import needs_small_disk, small_disk
from torch import Tensor, nn
from video_data import block_frame, rotate_mp4, write_clip

from visattn.images.video import Mp4Writer, VideoError, VideoReader, open_mp4
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.video import VideoOverlay, overlay_video
from visattn.viz.clips import contact_sheet, with_footer


class Bright(nn.Module):
    """One logit per brightness: its input gradient is highest where the image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, images: Tensor) -> Tensor:
        return images.clamp_min(0).pow(4).mean((1, 2, 3)).unsqueeze(1) * self.scale


def explainer() -> Explainer:
    return Explainer(
        Bright().eval(), img_size=(48, 64), class_names=["a", "b"], resize_mode="squash"
    )


def overlay(clip: Path, **options: Any) -> VideoOverlay:
    out = clip.with_name("result")
    return overlay_video(explainer(), clip, out, "input_gradient", "b", **options)


LEGEND = 20  # rows of the legend below each frame


def movie_frames(path: Path) -> list[np.ndarray]:
    with VideoReader(path) as video:
        return [frame.pixels.astype(int) for frame in video]


def hottest(pixels: np.ndarray) -> tuple[float, float]:
    """Row and column of the middle of the orange and yellow pixels; the photo around is gray."""
    warmth = pixels[:-LEGEND, :, 0] - pixels[:-LEGEND, :, 2]
    rows, columns = np.nonzero(warmth > 0.5 * warmth.max())
    return float(rows.mean()), float(columns.mean())


@pytest.mark.parametrize("scale", ["clip", "running"])
@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_the_map_follows_a_block_that_moves(scale: str, suffix: str, tmp_path: Path) -> None:
    frames = [block_frame(4 * i, 2 * i) for i in range(12)]
    result = overlay(write_clip(tmp_path / f"clip{suffix}", frames), scale=scale, every=3)
    assert result.indices == [0, 3, 6, 9]
    assert result.seconds == pytest.approx([0.0, 0.3, 0.6, 0.9])
    assert result.fps == pytest.approx(10 / 3)
    for index, pixels in zip(result.indices, movie_frames(result.movie), strict=True):
        assert hottest(pixels) == pytest.approx((2 * index + 7.5, 4 * index + 7.5), abs=3)
    with Image.open(result.sheet) as sheet:
        assert sheet.size[0] == 1200


def test_the_map_lies_right_on_a_rotated_video(tmp_path: Path) -> None:
    clip = rotate_mp4(write_clip(tmp_path / "clip.mp4", [block_frame(0, 0)] * 3), 90)
    [first, *_] = movie_frames(overlay(clip).movie)
    assert first.shape == (64 + LEGEND, 48, 3)
    assert hottest(first) == pytest.approx((7.5, 39.5), abs=3)


def test_the_sheet_spans_a_clip_of_unknown_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[list[float]] = []

    def sheet(tiles: list[tuple[float, str, np.ndarray]], title: str, **_: object) -> Image.Image:
        times.append([seconds for seconds, *_ in tiles])
        return Image.new("RGB", (8, 8))

    monkeypatch.setattr("visattn.pipelines.video.contact_sheet", sheet)
    monkeypatch.setattr("visattn.pipelines.video._SHEET_FRAMES", 3)
    clip = write_clip(tmp_path / "clip.avi", [block_frame(8, 8)] * 20)
    monkeypatch.setattr(
        VideoReader, "num_announced", property(lambda _: 0, lambda *_: None), raising=False
    )
    overlay(clip, scale="running")
    assert times == [pytest.approx([0.0, 0.8, 1.6])]


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    with open_mp4(tmp_path / "part", 10.0) as writer:
        writer.write(block_frame(8, 8, (47, 63)))
    [frame] = movie_frames(tmp_path / "part")
    assert frame.shape == (48, 64, 3)
    assert abs(frame[46:, 62:] - 90).max() <= 8


def test_smoothing_starts_anew_with_each_shot(tmp_path: Path) -> None:
    shots = [block_frame(0, 0)] * 4 + [block_frame(48, 32, level=10)] * 4
    result = overlay(write_clip(tmp_path / "clip.avi", shots), smoothing=0.9)
    assert result.shots == [0, 4]
    fifth = movie_frames(result.movie)[4]
    assert hottest(fifth) == pytest.approx((39.5, 55.5), abs=3)


def test_a_pan_is_no_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scenes = [rng.integers(0, 256, (13, 17, 3), np.uint8) for _ in range(2)]
    photos = [np.asarray(Image.fromarray(scene).resize((128, 96))) for scene in scenes]
    shots = [[photo[2 * i :][:48, 9 * i :][:, :64] for i in range(6)] for photo in photos]
    result = overlay(write_clip(tmp_path / "clip.avi", [*shots[0], *shots[1]]))
    assert result.shots == [0, 6]


def test_the_predicted_class_is_written_below_each_frame(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", [block_frame(8, 8)])
    out = tmp_path / "predicted"
    result = overlay_video(explainer(), clip, out, "input_gradient", None)
    [frame] = movie_frames(result.movie)
    assert frame.shape == (72 + LEGEND, 64, 3)  # 48 without the line of text
    assert np.ptp(frame[50:70].mean(-1)) > 60
    assert np.ptp(frame[74:90].mean(-1)) > 60


def test_long_captions_are_wrapped() -> None:
    page = np.zeros((60, 100, 3), np.uint8)
    text = "a large dotted orange ring is right of a large star"
    drawn = np.asarray(with_footer(page, text, None, 3)).astype(int)
    assert drawn.shape == (120, 100, 3)
    rows = (drawn[60:].mean(-1) < 120).any(1)
    starts = np.flatnonzero(np.diff(rows.astype(int)) == 1)
    assert len(starts) >= 3  # descenders count on their own
    assert contact_sheet([(0.0, text, page)] * 9, "clip", lines=3).size[1] == (
        contact_sheet([(0.0, text, page)] * 9, "clip").size[1] + 2 * 3 * 16
    )


def test_without_a_cut_smoothing_keeps_the_earlier_map(tmp_path: Path) -> None:
    frames = [block_frame(0, 0)] * 3 + [block_frame(48, 32)]
    result = overlay(write_clip(tmp_path / "clip.avi", frames), smoothing=0.9, cut_threshold=0.5)
    assert result.shots == [0]
    assert hottest(movie_frames(result.movie)[3]) == pytest.approx((7.5, 7.5), abs=3)


def test_one_scale_for_the_clip(tmp_path: Path) -> None:
    frames = [block_frame(8, 8)] * 2 + [np.full((48, 64, 3), 140, np.uint8)] * 2
    clip = write_clip(tmp_path / "clip.avi", frames)
    strong, *_, weak = movie_frames(overlay(clip, cut_threshold=1.0).movie)
    assert (weak.max(-1) - weak.min(-1)).mean() < (strong.max(-1) - strong.min(-1)).max() / 2


def test_a_truncated_video_yields_what_it_has(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.avi", [block_frame(i, 8) for i in range(40)])
    content = clip.read_bytes()
    clip.write_bytes(content[: len(content) // 2])
    result = overlay(clip)
    assert 5 < len(result.indices) < 40
    assert len(movie_frames(result.movie)) == len(result.indices)


def test_nothing_is_left_of_a_failed_video(tmp_path: Path) -> None:
    clip = tmp_path / "clip.avi"
    clip.write_bytes(b"RIFF\x00\x00\x00\x00AVI ")
    with pytest.raises(VideoError):
        overlay(clip)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.avi"]


def test_large_maps_need_the_running_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visattn.pipelines.video._MAX_BYTES", 30_000)
    clip = write_clip(tmp_path / "clip.avi", [block_frame(8, 8)] * 4)
    with pytest.raises(VideoError, match="use the running scale"):
        overlay(clip)
    assert overlay(clip, scale="running").indices == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": 1.0}, "smoothing must be in"),
        ({"scale": "frame"}, "scale must be one of clip, running"),
        ({"every": 0}, "every must be from 1"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        overlay(write_clip(tmp_path / "clip.avi", [block_frame(8, 8)]), **options)


def test_a_camera_needs_an_end(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a camera has no end"):
        overlay_video(explainer(), 0, tmp_path / "out", "input_gradient")


def fill(movie: Mp4Writer, count: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(count):
        movie.write(rng.integers(0, 256, (96, 128, 3), np.uint8))


def test_a_torn_movie_does_not_replace_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_mp4(tmp_path / "a.mp4", 10.0) as movie:
        fill(movie, 3)
    before, close = (tmp_path / "a.mp4").read_bytes(), Mp4Writer.close

    def torn(writer: Mp4Writer) -> None:  # as OpenCV leaves it on a full disk, without an error
        close(writer)
        writer.path.write_bytes(writer.path.read_bytes()[:-2000])

    monkeypatch.setattr(Mp4Writer, "close", torn)
    with (
        pytest.raises(VideoError, match="was not written: 0 of its 5 frames can be read again"),
        open_mp4(tmp_path / "a.mp4", 10.0) as movie,
    ):
        fill(movie, 5)
    monkeypatch.setattr("visattn.images.video.is_disk_full", lambda _: True)
    with (
        pytest.raises(OSError, match=r"No space left on device"),
        open_mp4(tmp_path / "a.mp4", 10.0) as movie,
    ):
        fill(movie, 5)
    assert (tmp_path / "a.mp4").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


@needs_small_disk
def test_a_full_disk_keeps_the_older_movie(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 400) as disk:
        with open_mp4(disk / "a.mp4", 10.0) as movie:
            fill(movie, 3)
        before = (disk / "a.mp4").read_bytes()
        (disk / "more").write_bytes(bytes(shutil.disk_usage(disk).free - 40_000))
        with (
            pytest.raises(OSError, match="No space left on device"),
            open_mp4(disk / "a.mp4", 10.0) as movie,
        ):
            fill(movie, 60)
        assert (disk / "a.mp4").read_bytes() == before
        assert {path.name for path in disk.iterdir()} == {"a.mp4", "more"}
