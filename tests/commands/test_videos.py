"""`visattn overlay` on videos."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from index_cards import parse_index_page
from safetensors.torch import save_file
from video_data import block_frame, write_clip

from visattn.cli import main
from visattn.images.video import read_frames

Overlay = Callable[..., int]
Capsys = pytest.CaptureFixture[str]
MODEL = """
import torch
from torch import nn

class Bright(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, images):
        return images.clamp_min(0).pow(4).mean((1, 2, 3)).unsqueeze(1) * self.scale
"""


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Overlay:
    """Run the command in a folder with a model of its own."""
    monkeypatch.chdir(tmp_path)
    Path("bright.py").write_text(MODEL)
    save_file({"scale": torch.tensor([1.0, 2.0])}, "bright.safetensors")
    model = ["--model", "bright.py:Bright", "--weights", "bright.safetensors"]
    options = [*model, "--input-size", "48x64", "--method", "input_gradient", "--out", "maps"]
    return lambda *words: main(["overlay", *words, *options])


def clip(name: str = "clip.mp4", count: int = 7) -> Path:
    return write_clip(Path(name), [block_frame(4 * i, 2 * i) for i in range(count)])


def test_a_video_gives_a_movie_and_a_sheet_once(overlay: Overlay, capsys: Capsys) -> None:
    clip()
    movie = Path("maps/clip.input_gradient.mp4")
    times: set[int] = set()
    for _ in range(2):
        assert overlay("clip.mp4", "--every", "2") == 0
        streams = capsys.readouterr()
        assert streams.out == "clip\tinput_gradient\t4 frames\n"
        assert f"open {movie}" in streams.err
        times.add(movie.stat().st_mtime_ns)
    assert len(times) == 1
    assert len(list(read_frames(movie))) == 4
    assert movie.with_suffix(".png").is_file()
    [card] = parse_index_page(Path("maps/index.html").read_text())
    assert (card.page, card.caption) == ("clip.input_gradient.mp4", "input_gradient")
    assert overlay("clip.mp4") == 0
    assert len(list(read_frames(movie))) == 7


def test_a_broken_video_is_reported_and_the_others_are_drawn(
    overlay: Overlay, capsys: Capsys
) -> None:
    content = clip("good.avi", 40).read_bytes()
    Path("half.avi").write_bytes(content[: len(content) // 2])
    Path("broken.avi").write_bytes(b"RIFF" + bytes(99))
    assert overlay("broken.avi", "half.avi") == 1
    streams = capsys.readouterr()
    frames = int(streams.out.split("\t")[-1].removesuffix(" frames\n"))
    assert len(list(read_frames("maps/half.input_gradient.mp4"))) == frames < 40
    assert "skipped broken.avi has no frame that can be read" in streams.err
    assert not list(Path("maps").glob("*broken*"))


def test_photos_and_videos_take_separate_commands(overlay: Overlay, capsys: Capsys) -> None:
    clip()
    assert overlay("clip.mp4", "photo.png") == 1
    assert "take separate commands, got clip.mp4 and photos" in capsys.readouterr().err
    assert overlay("nowhere.mp4") == 1
    assert "nowhere.mp4" in capsys.readouterr().err
