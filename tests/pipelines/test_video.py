"""Overlays on video: frame k of the movie shows frame k of the clip, and the map follows it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from video_data import block_frame, write_clip

from visattn.images.video import read_frames
from visattn.pipelines.explainer import Explainer
from visattn.pipelines.video import overlay_video


class Bright(nn.Module):
    """One logit per brightness: its input gradient is highest where the image is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, images: Tensor) -> Tensor:
        return images.clamp_min(0).pow(4).mean((1, 2, 3)).unsqueeze(1) * self.scale


def overlay(clip: Path, **options: Any) -> list[np.ndarray]:
    """Return the frames of the movie that is drawn from a clip."""
    out = clip.with_name("result")
    explainer = Explainer(
        Bright().eval(), input_size=(48, 64), class_names=["a", "b"], resize_mode="squash"
    )
    count = overlay_video(explainer, clip, out, "input_gradient", "b", **options)
    frames = list(read_frames(out.with_name("result.mp4")))
    assert len(frames) == count
    return [frame.astype(int) for frame in frames]


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_each_frame_shows_its_own_block_and_map(suffix: str, tmp_path: Path) -> None:
    frames = [block_frame(4 * i, 2 * i) for i in range(12)]
    shown = overlay(write_clip(tmp_path / f"clip{suffix}", frames), every=3, batch_size=3)
    assert len(shown) == 4
    for index, pixels in zip((0, 3, 6, 9), shown, strict=True):
        warmth = pixels[..., 0] - pixels[..., 2]  # of orange and yellow; the photo around is gray
        middle = np.argwhere(warmth > 0.5 * warmth.max()).mean(0)
        assert middle == pytest.approx([2 * index + 7.5, 4 * index + 7.5], abs=3)
    with Image.open(tmp_path / "result.png") as sheet:
        assert sheet.size[0] == 1400


def test_all_frames_have_one_scale(tmp_path: Path) -> None:
    frames = [block_frame(8, 8), block_frame(40, 24, level=40)]
    frames[1][24:40, 40:56] = 150
    bright, dim = overlay(write_clip(tmp_path / "clip.avi", frames))
    assert (bright[..., 0] - bright[..., 2]).max() > 2 * (dim[..., 0] - dim[..., 2]).max()
