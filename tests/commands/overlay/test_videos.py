"""`visattn overlay` on videos: files, resume, messages, refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from video_data import block_frame, write_clip

from visattn.cli import main
from visattn.images.video import read_frames

Run = Callable[..., int]
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
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in a folder with a model of its own."""
    monkeypatch.chdir(tmp_path)
    Path("bright.py").write_text(MODEL)
    save_file({"scale": torch.tensor([1.0, 2.0])}, "bright.safetensors")

    def overlay(*arguments: str) -> int:
        return main([
            "overlay", *arguments, "--model", "bright.py:Bright", "--weights", "bright.safetensors",
            "--input-size", "48x64", "--method", "input_gradient", "--out", "maps",
        ])  # fmt: skip

    return overlay


def clip(name: str = "clip.mp4", count: int = 7) -> Path:
    return write_clip(Path(name), [block_frame(4 * i, 2 * i) for i in range(count)])


def test_a_video_gives_a_movie_a_sheet_and_a_record(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    clip()
    assert run("clip.mp4", "--every", "2") == 0
    assert capsys.readouterr().out == "clip.mp4\tinput_gradient\t4 frames\n"
    record = json.loads(Path("maps/clip.input_gradient.json").read_text())
    assert record["frames"] == 4
    assert len(list(read_frames("maps/clip.input_gradient.mp4"))) == 4
    assert Path("maps/clip.input_gradient.png").is_file()


def test_finished_videos_are_not_explained_again(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    clip()
    assert run("clip.mp4") == 0
    first = Path("maps/clip.input_gradient.mp4").stat().st_mtime_ns
    assert run("clip.mp4") == 0
    assert "exists already" in capsys.readouterr().out
    assert Path("maps/clip.input_gradient.mp4").stat().st_mtime_ns == first
    assert run("clip.mp4", "--every", "2") == 0  # made in another way
    assert Path("maps/clip.input_gradient.mp4").stat().st_mtime_ns > first


def test_a_broken_video_is_reported_and_the_others_are_drawn(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    clip("good.avi")
    Path("broken.avi").write_bytes(b"RIFF" + bytes(99))
    assert run("broken.avi", "good.avi") == 1
    streams = capsys.readouterr()
    assert "good.avi\tinput_gradient\t7 frames" in streams.out
    assert "skipped broken.avi has no frame that can be read" in streams.err
    assert not list(Path("maps").glob("broken*"))


def test_a_truncated_video_is_drawn_as_far_as_it_goes(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path = clip("clip.avi", 40)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert run("clip.avi") == 0
    frames = int(capsys.readouterr().out.split("\t")[-1].removesuffix(" frames\n"))
    assert len(list(read_frames("maps/clip.input_gradient.mp4"))) == frames < 40


def test_the_dry_run_writes_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    clip()
    assert run("clip.mp4", "--dry-run") == 0
    assert "clip.input_gradient.mp4" in capsys.readouterr().out
    assert not Path("maps").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clip.mp4", "photo.png"], "take separate commands, got clip.mp4 beside photos"),
        (["clip.mp4", "--explorer"], "--explorer is for photos"),
        (["clip.mp4", "--normalize", "global"], "--normalize is for photos"),
        (["clip.mp4", "--interpolation", "nearest"], "--interpolation is for photos"),
        (["nowhere.mp4"], "nowhere.mp4"),
    ],
)
def test_what_does_not_fit_a_video_is_refused(
    arguments: list[str], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    clip()
    assert run(*arguments) == (1 if message == "nowhere.mp4" else 2)
    assert message in capsys.readouterr().err


def test_nothing_to_read_is_a_usage_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "name the photos or videos" in capsys.readouterr().err


@pytest.mark.usefixtures("run")
def test_random_weights_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    clip(count=1)
    model = ["--model", "timm:test_resnet", "--input-size", "48x64", "--method", "input_gradient"]
    assert main(["overlay", "clip.mp4", *model, "--out", "maps"]) == 0
    assert "the weights are random: the maps have no meaning" in capsys.readouterr().err
