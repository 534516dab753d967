"""`visattn segment`: masks, overlays, figures, index, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image

import visattn
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet
from visattn.viz.segmentation import class_palette

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    names = ("background", "cat", "dog")
    path = tmp_path_factory.mktemp("weights") / "unet.safetensors"
    visattn.save(UNet(names, SmallEncoder((24, 40), channels=8), block="gate"), path)
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name, size in {"tall.png": (59, 29), "wide.jpg": (23, 101), "deep/dot.png": (1, 1)}.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


def test_a_folder_yields_lines_masks_overlays_and_an_index(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    assert main(["segment", str(images), "--weights", str(weights), "--out", str(out)]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    names = ("deep/dot", "tall", "wide")
    assert sorted(lines) == sorted(names)
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    kinds = ("{}.png", "{}.json", "masks/{}.png", "overlays/{}.png")
    assert files == {kind.format(name) for name in names for kind in kinds} | {
        "index.html",
        "segment.csv",
    }
    cards = parse_index_page((out / "index.html").read_text())
    assert {card.name: card.caption for card in cards} == lines
    for name, size in (("tall", (59, 29)), ("wide", (23, 101)), ("deep/dot", (1, 1))):
        with Image.open(out / "masks" / f"{name}.png") as image:
            mask = np.asarray(image)
            colors = np.asarray(image.convert("RGB"))
            assert image.mode == "P"
        assert mask.shape == size
        np.testing.assert_array_equal(colors, class_palette()[mask])
        record = json.loads((out / f"{name}.json").read_text())
        for number, label in enumerate(record["class_names"]):
            share = record["shares"].get(label, 0.0)
            assert (mask == number).mean() == pytest.approx(share, abs=1e-6)
        with Image.open(out / "overlays" / f"{name}.png") as image:
            assert image.size == size[::-1]


def test_a_crop_leaves_the_rest_of_the_mask_out(
    weights: Path, images: Path, tmp_path: Path
) -> None:
    arguments = [str(images / "wide.jpg"), "--weights", str(weights), "--resize-mode", "crop"]
    assert main(["segment", *arguments, "--out", str(tmp_path / "out")]) == 0
    with Image.open(tmp_path / "out" / "masks" / "wide.png") as image:
        mask = np.asarray(image)
    assert (mask[:, :20] == 255).all()
    assert (mask[:, 40:60] != 255).all()
    assert not (tmp_path / "out" / "index.html").exists()


def test_a_dry_run_lists_the_files_and_writes_none(
    weights: Path, images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    arguments = ["segment", str(images), "--weights", str(weights), "--out", str(out), "--dry-run"]
    assert main(arguments) == 0
    assert "masks/tall.png" in capsys.readouterr().out
    assert not out.exists()


def test_other_models_and_missing_weights_are_refused(
    images: Path, tmp_path: Path, capsys: Capsys
) -> None:
    encoder = tmp_path / "encoder.safetensors"
    visattn.save(SmallEncoder((24, 40), channels=8), encoder)
    assert main(["segment", str(images), "--weights", str(encoder)]) == 1
    assert "holds a SmallEncoder, which is not a segmentation model" in capsys.readouterr().err
    assert main(["segment", str(images)]) == 2
    assert "visattn fit --config scenes_unet" in capsys.readouterr().err
    assert main(["segment", str(images), "--weights", str(tmp_path / "no.safetensors")]) == 1
    assert "no model is named" in capsys.readouterr().err
