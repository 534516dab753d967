"""Animations of scan paths, from the command line of a checkout."""

import io
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from classification_data import write_digits
from PIL import Image
from tool_modules import tool_module

import visattn
from visattn.models.base import SmallEncoder
from visattn.models.glimpses.ram import RecurrentAttentionModel


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("animate_glimpses")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    model = RecurrentAttentionModel(
        tuple("0123456789"), (31, 41), (0.1,), (0.3,), num_glimpses=3, hidden_size=11
    )
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    visattn.save(model, path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for index in range(3):
        pixels = np.random.default_rng(index).integers(0, 256, (37, 53, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "in" / f"{index}.png")
    return tmp_path / "in"


def frames(path: Path) -> int:
    with Image.open(io.BytesIO(path.read_bytes())) as opened:
        return getattr(opened, "n_frames", 1)


def test_one_animation_for_all_images_or_one_for_each(
    tool: ModuleType,
    weights: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wall, arguments = tmp_path / "all.gif", ["--weights", str(weights), "--side", "40"]
    assert tool.main([str(photos), *arguments, "--out", str(wall), "--columns", "2"]) == 0
    assert frames(wall) == 5
    with Image.open(wall) as opened:
        assert opened.width == 2 * 14 + 2 * 52 - 12
    assert (
        tool.main([str(photos), *arguments, "--out", str(tmp_path / "each"), "--count", "2"]) == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed == [str(wall), *(str(tmp_path / "each" / f"0{number}.gif") for number in (1, 2))]
    assert all(frames(Path(line)) == 5 for line in printed)


def test_animates_digits_of_the_test_set(tool: ModuleType, weights: Path, tmp_path: Path) -> None:
    write_digits(tmp_path, train=5003)  # of which 5000 are for validation
    arguments = [
        "--digits",
        str(tmp_path),
        "--weights",
        str(weights),
        "--side",
        "40",
        "--count",
        "4",
    ]
    assert tool.main([*arguments, "--num-distractors", "2", "--out", str(tmp_path / "a.gif")]) == 0
    assert frames(tmp_path / "a.gif") == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "none.safetensors"], "either images or --digits"),
        (["in", "--digits", "x", "--weights", "none.safetensors"], "either images or --digits"),
        (["in", "--weights", "none.safetensors"], "no model at none.safetensors"),
        (["in", "--weights", "other.safetensors"], "contains a SmallEncoder"),
        (["in", "--weights", "W", "--count", "0"], "must be at least 1"),
        (["none", "--weights", "W"], "none does not exist"),
        (["in", "--weights", "W", "--out", "a.mp4"], "must be a .gif file or a folder"),
    ],
)
def test_usage_errors_are_reported(
    arguments: list[str],
    message: str,
    tool: ModuleType,
    weights: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(photos.parent)
    visattn.save(SmallEncoder((24, 24)), "other.safetensors")
    paths = [str(weights) if word == "W" else word for word in arguments]
    with pytest.raises(SystemExit, match="2"):
        tool.main([*([] if "--out" in paths else ["--out", "out.gif"]), *paths])
    assert message in capsys.readouterr().err
