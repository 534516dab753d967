"""Models that come with visattn: load, card, scores, and the commands that use them."""

import re
from pathlib import Path

import pytest
import torch

import visattn as va
from visattn.cli import main
from visattn.data.scenes.dataset import SINGLE_OBJECT, single_object_scenes
from visattn.data.scenes.language import verify_caption
from visattn.data.scenes.world import WorldConfig
from visattn.models import RecurrentAttentionModel, ShowAttendTell
from visattn.models.model_files import BUNDLED, bundled_models


def test_they_are_small_and_have_cards() -> None:
    models = bundled_models()
    assert list(models) == ["scenes-captioner", "scenes-glimpses"]
    assert sum((BUNDLED / f"{name}.safetensors").stat().st_size for name in models) <= 6e6
    for name, summary in models.items():
        text = (BUNDLED / f"{name}.md").read_text()
        assert summary in text
        for part in ("photos", "seed_everything: 0", "## Test scores", "make models"):
            assert part in text, (name, part)


def test_the_captioner_tells_the_truth_about_scenes() -> None:
    model = va.load("scenes-captioner")
    assert isinstance(model, ShowAttendTell)
    scenes = va.Scenes(24, size=80, split="test", seed=7)
    images = [scenes.image(index).permute(1, 2, 0).numpy() for index in range(len(scenes))]
    captions = va.caption(model, images)
    correct = [
        verify_caption(caption.text, scenes.world(index)).true
        for index, caption in enumerate(captions)
    ]
    assert sum(correct) >= 19


def test_the_glimpse_model_reads_shapes() -> None:
    model = va.load("scenes-glimpses")
    assert isinstance(model, RecurrentAttentionModel)
    config = WorldConfig(textures=("plain",), num_objects=SINGLE_OBJECT.num_objects)
    objects = single_object_scenes(va.Scenes(48, size=64, split="test", seed=7, config=config))
    torch.manual_seed(0)
    with torch.no_grad():
        predicted = model(objects.images).argmax(1)
    assert (predicted == objects.labels).float().mean() > 0.75


def test_unknown_names_are_refused_with_close_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match="did you mean scenes-captioner"):
        va.load("scenes-captoner")
    with pytest.raises(FileNotFoundError, match="a model is named by .*timm:NAME"):
        va.load("resnet18")
    assert main(["models", "scenes-caption"]) == 1
    assert "did you mean scenes-captioner" in capsys.readouterr().err


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenes-captioner").write_bytes(b"mine")
    with pytest.raises(ValueError, match="scenes-captioner is damaged"):
        va.load("scenes-captioner")


def test_the_commands_list_and_describe_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert re.findall(r"^[\w-]+", capsys.readouterr().out, re.MULTILINE) == [*bundled_models()]
    assert main(["models", "scenes-glimpses"]) == 0
    assert "class RecurrentAttentionModel" not in (out := capsys.readouterr().out)
    assert "`RecurrentAttentionModel`" in out


def test_the_demo_writes_a_page_of_captioned_scenes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path / "d"), "--count", "2"]) == 0
    err = capsys.readouterr().err
    page = tmp_path / "d" / "captions" / "index.html"
    assert err == f"visattn: open in a browser: {page}\n"  # and no warning
    assert page.read_text().count(".html") >= 2
    assert len(list((tmp_path / "d" / "captions").glob("test-*.html"))) == 2


def test_glimpse_takes_the_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "shapes", "--out", str(tmp_path), "--count", "2"]) == 0
    line = ["--model", "scenes-glimpses", "--out", str(tmp_path / "out")]
    assert main(["glimpse", str(tmp_path), *line]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert captured.err == f"visattn: open in a browser: {tmp_path / 'out' / 'index.html'}\n"
    photo = tmp_path / "photos" / "photo.png"
    photo.parent.mkdir()
    photo.write_bytes((tmp_path / "test-0.png").read_bytes())
    assert main(["glimpse", str(photo), *line, "--overwrite"]) == 0
    assert "on photos its output has no meaning" in capsys.readouterr().err


def test_a_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in BUNDLED.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr("visattn.models.model_files.BUNDLED", tmp_path)
    file = tmp_path / "scenes-glimpses.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"scenes-glimpses.* is damaged or no safetensors file"):
        va.load("scenes-glimpses")
