"""Videos in `visattn caption`, `visattn glimpse` and, with a video model, `visattn overlay`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from video_data import block_frame, write_clip

import visattn
from visattn.cli import main
from visattn.images.video import VideoReader
from visattn.models import (
    SPECIAL_TOKENS,
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    TransformerCaptioner,
)

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    frames = [block_frame(4 * i, 2 * i) for i in range(7)]
    return write_clip(Path("clip.mp4"), frames)


def movie(path: str) -> list[np.ndarray]:
    with VideoReader(path) as frames:
        return [frame.pixels for frame in frames]


def glimpse_model() -> None:
    torch.manual_seed(1)
    model = RecurrentAttentionModel(
        ("cat", "dog"), (24, 32), [0.5] * 3, [0.3] * 3, glimpse_size=4, num_glimpses=2,
        init_location="learned",
    )  # fmt: skip
    with torch.no_grad():  # looks at the lower right
        model.policy.init_mean.copy_(torch.tensor([0.5, 0.5]))
        model.policy.mean.weight.zero_()
        model.policy.mean.bias.fill_(0.5)
    visattn.save(model, "glimpses.safetensors")


def test_glimpses_are_drawn_on_each_frame_and_resumed(capsys: Capsys) -> None:
    glimpse_model()
    command = [
        "glimpse",
        "clip.mp4",
        "--weights",
        "glimpses.safetensors",
        "--every",
        "3",
        "--out",
        "o",
    ]
    assert main(command) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["clip.mp4", f"{s:.2f}"] for s in (0, 0.3, 0.6)]
    record = json.loads(Path("o/clip.glimpses.json").read_text())
    assert [row[2] for row in rows] == record["classes"]
    left, top, right, bottom = record["details"][1]["boxes"][0][0]
    assert (left, top, right, bottom) == (44, 32, 52, 40)  # 4 x 4 cells of 2 x 2 pixels
    frame = movie("o/clip.glimpses.mp4")[1]
    assert frame.shape == (72, 64, 3)  # with a line of text
    assert frame[40:46, 2:20].mean() < 60  # 90 in the clip: dimmed where nothing is seen
    assert main(command) == 0
    assert capsys.readouterr().out == "clip.mp4\texists already\n"
    assert main([*command, "--policy", "random"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_captions_are_written_below_each_frame(capsys: Capsys) -> None:
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, "red", "ring")
    model = ShowAttendTell(words, SmallEncoder((24, 32), channels=8), hidden_size=8)
    visattn.save(model, "captioner.safetensors")
    command = ["caption", "clip.mp4", "--weights", "captioner.safetensors", "--out", "o"]
    assert main([*command, "--max-frames", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    record = json.loads(Path("o/clip.caption.json").read_text())
    frames = [block_frame(0, 0), block_frame(4, 2)]
    for row, frame, details in zip(rows, frames, record["details"], strict=True):
        assert row[2] == " ".join(details["words"])
        assert len(details["gates"]) == len(details["words"]) > 0
        assert frame.shape == (48, 64, 3)
    assert movie("o/clip.caption.mp4")[0].shape == (108 + 20, 64, 3)  # three lines, legend
    assert Path("o/clip.caption.png").is_file()


def test_other_maps_of_a_captioner_are_drawn_anew(capsys: Capsys) -> None:
    words = (*SPECIAL_TOKENS, "red", "ring")
    encoder = SmallEncoder((24, 32), channels=8)
    model = TransformerCaptioner(words, encoder, embed_dim=8, num_layers=1, num_heads=2)
    visattn.save(model, "captioner.safetensors")
    command = ["caption", "clip.mp4", "--weights", "captioner.safetensors", "--out", "o"]
    command += ["--max-frames", "1", "--maps"]
    for choice, done in (("mean", False), ("0,1", False), ("0,1", True)):
        assert main([*command, choice]) == 0
        assert (capsys.readouterr().out == "clip.mp4\texists already\n") == done


def test_bundled_models_take_videos(capsys: Capsys) -> None:
    for command in ("caption", "glimpse"):
        name = {"caption": "scenes-captioner", "glimpse": "scenes-glimpses"}[command]
        arguments = [command, "clip.mp4", "--weights", name, "--max-frames", "1", "--out", "o"]
        assert main(arguments) == 0, capsys.readouterr().err
    origin = json.loads(Path("o/clip.glimpses.json").read_text())["provenance"]
    assert origin["settings"]["weights"]["file"] == "scenes-glimpses.safetensors"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["caption", "clip.mp4", "--weights", "m.safetensors"], 2, "needs an output folder"),
        (["glimpse", "clip.mp4", "--weights", "m.safetensors"], 2, "needs an output folder"),
        (["glimpse", "--weights", "m.safetensors"], 2, "name the photos or videos"),
        (["caption", "clip.mp4", "--weights", "m.safetensors", "--out", "o", "--gif"], 2,
         "--gif is for photos"),
        (["glimpse", "clip.mp4", "a.png", "--weights", "m.safetensors", "--out", "o"], 1,
         "take separate commands"),
        (["caption", "--camera", "99", "--weights", "captioner.safetensors", "--out", "o"], 1,
         "camera 99 cannot be opened"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_video_is_refused(
    arguments: list[str], code: int, message: str, capsys: Capsys
) -> None:
    model = ShowAttendTell((*SPECIAL_TOKENS, "a"), SmallEncoder((24, 32), channels=8))
    visattn.save(model, "captioner.safetensors")
    assert main(arguments) == code
    assert message in capsys.readouterr().err
    assert not list(Path().glob("o/*.mp4"))


def save_videomae() -> nn.Module:
    library: Any = pytest.importorskip("transformers")
    config = library.VideoMAEConfig(
        image_size=32, patch_size=16, num_frames=4, tubelet_size=2, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = library.VideoMAEForVideoClassification(config)
    model.save_pretrained("videomae")
    return model


def test_a_video_model_explains_clips_of_frames(capsys: Capsys) -> None:
    save_videomae()
    command = ["overlay", "clip.mp4", "--model", "hf:videomae", "--out", "o", "--target", "1"]
    assert main([*command, "--method", "all"]) == 0
    rows = [line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()]
    expected = ["gradcam", "attention", "input_gradient"]
    assert rows == [[name, "7 frames", "1 shot"] for name in expected]
    assert len(movie("o/clip.attention.mp4")) == 7
    assert main([*command, "--method", "rise"]) == 1
    assert "supported methods: gradcam, attention, input_gradient" in capsys.readouterr().err
    assert main([*command, "--layers", "0"]) == 1
    assert "--layers does not apply to video models" in capsys.readouterr().err
    assert main(["overlay", "x.png", "--model", "hf:videomae", "--out", "o"]) == 1
