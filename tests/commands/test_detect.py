"""`visattn detect`: lines, images and JSON in the coordinates of the photo, and errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from detection_data import small_detector
from index_cards import parse_index_page
from PIL import Image

import visattn
from visattn.cli import main
from visattn.pipelines.detection import detect
from visattn.results.values import Detections

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    visattn.save(small_detector(), path)
    return str(path)


def test_files_hold_what_the_library_returns(
    weights: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    options = ["--weights", weights, "--threshold", "0.05", "--out", str(out)]
    assert main(["detect", str(photos), *options]) == 0
    lines = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    suffixes = (".png", ".queries.png", ".json")
    files = {f"{name}{suffix}" for name in ("tall", "wide") for suffix in suffixes}
    assert {path.name for path in out.iterdir()} == {*files, "index.html", "detect.csv"}
    cards = parse_index_page((out / "index.html").read_text())
    assert {card.name: card.caption for card in cards} == lines
    for name in lines:
        [result] = detect(visattn.load(weights), photos / f"{name}.png", threshold=0.05)
        record = json.loads((out / f"{name}.json").read_text())
        again = Detections.from_dict(record)
        assert [entry["label"] for entry in record["objects"]] == [x.label for x in result.objects]
        for entry, each in zip(record["objects"], result.objects, strict=True):
            assert entry["box"] == pytest.approx(each.box, abs=1e-3)
            assert 0.05 <= entry["score"] == pytest.approx(each.score, abs=1e-5)
        assert again.maps.geometry == result.maps.geometry
        torch.testing.assert_close(again.maps.values, result.maps.values, rtol=1e-4, atol=1e-6)
        with Image.open(out / f"{name}.png") as drawn, Image.open(photos / f"{name}.png") as photo:
            assert drawn.size == photo.size


def test_a_turned_photo_has_upright_boxes(weights: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (48, 80, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned by 90 degrees
    Image.fromarray(np.rot90(pixels).copy()).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(pixels).save(tmp_path / "upright.png")
    records = []
    for name in ("turned", "upright"):
        out = tmp_path / name
        options = ["--weights", weights, "--threshold", "0", "--out", str(out)]
        assert main(["detect", str(tmp_path / f"{name}.png"), *options]) == 0
        records.append(json.loads((out / f"{name}.json").read_text()))
    assert records[0]["objects"] == records[1]["objects"]
    assert records[0]["maps"]["geometry"]["image_size"] == [48, 80]


def test_other_models_are_refused(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    from visattn.models.base import SmallEncoder

    visattn.save(SmallEncoder((24, 24), channels=8), tmp_path / "encoder.safetensors")
    assert main(["detect", str(photos), "--weights", str(tmp_path / "encoder.safetensors")]) == 1
    assert "holds a SmallEncoder, which is not a detector" in capsys.readouterr().err
