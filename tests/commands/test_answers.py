"""`visattn ask`, `detect`, `segment` and `glimpse`: files hold what the library returns."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from index_cards import parse_index_page
from PIL import Image

import visattn as va
from visattn.pipelines.detection import detect
from visattn.pipelines.scanpath import glimpses
from visattn.results.records import from_dict
from visattn.results.values import Detections, ScanPath, format_percent
from visattn.viz.segmentation import class_palette

Run = Callable[..., int]
Capsys = pytest.CaptureFixture[str]
NAMES = ("deeper/dot", "tall", "wide")
QUESTIONS = ("what color is the ring?", "is the rng on the left")


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def read(out: Path, name: str) -> dict[str, Any]:
    return json.loads((out / f"{name}.json").read_text())


def cards_of(out: Path) -> dict[str, str]:
    cards = parse_index_page((out / "index.html").read_text())
    assert all((out / card.page).is_file() for card in cards)
    return {card.page.partition(".")[0]: card.caption for card in cards}


def test_answers(run: Run, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    out, model = tmp_path / "out", "asks.safetensors"
    assert run("ask --model", model, photos, "--out", out, "--questions", *QUESTIONS) == 0
    printed = capsys.readouterr()
    assert printed.err.count("'rng': did you mean ring?") == 1
    rows = {tuple(line.split("\t")[:2]): line.split("\t")[2] for line in printed.out.splitlines()}
    files = {f"{name}.{end}" for name in NAMES for end in ("html", "json")}
    assert names(out) == {*files, "index.html", "ask.csv"}
    for name in NAMES:
        with pytest.warns(UserWarning, match="rng"):
            answers = va.ask(va.load(model), photos / f"{name}.png", QUESTIONS)
        for entry, answer in zip(read(out, name)["questions"], answers, strict=True):
            best, probability = answer.answers[0]
            assert re.fullmatch(rf"{best} \(\d+ %\)", rows[name, answer.question])
            assert entry["answers"][0] == [best, pytest.approx(probability, abs=1e-5)]
            assert answer.maps is not None
            torch.testing.assert_close(torch.tensor(entry["maps"]["values"]), answer.maps.values)
            assert from_dict(va.Geometry, entry["maps"]["geometry"]) == answer.maps.geometry
            assert entry["unknown"] == list(answer.unknown)


def test_objects(run: Run, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    out, line = tmp_path / "out", "detect --model boxes.safetensors --out"
    assert run(line, out, photos, "--threshold", "0.05") == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    files = {f"{name}{end}" for name in NAMES for end in (".png", ".queries.png", ".json")}
    assert names(out) == {*files, "index.html", "detect.csv"}
    assert cards_of(out) == rows
    for name in NAMES:
        photo = photos / f"{name}.png"
        [result] = detect(va.load("boxes.safetensors"), photo, threshold=0.05)
        record = read(out, name)
        again = Detections.from_dict(record)
        for entry, each in zip(record["objects"], result.objects, strict=True):
            assert entry["label"] == each.label
            assert entry["box"] == pytest.approx(each.box, abs=1e-3)
            assert 0.05 <= entry["score"] == pytest.approx(each.score, abs=1e-5)
        assert again.maps.geometry == result.maps.geometry
        torch.testing.assert_close(again.maps.values, result.maps.values, rtol=1e-4, atol=1e-6)
        with Image.open(out / f"{name}.png") as drawn, Image.open(photo) as opened:
            assert drawn.size == opened.size


def test_masks(run: Run, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    out, line = tmp_path / "out", "segment --model areas.safetensors --out"
    assert run(line, out, photos) == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    kinds = ("{}.png", "{}.json", "masks/{}.png", "overlays/{}.png")
    files = {kind.format(name) for name in NAMES for kind in kinds}
    assert names(out) == {*files, "index.html", "segment.csv"}
    assert cards_of(out) == rows
    for name in NAMES:
        with Image.open(photos / f"{name}.png") as photo:
            size = photo.size
        with Image.open(out / "masks" / f"{name}.png") as image:
            mask, colors = np.asarray(image), np.asarray(image.convert("RGB"))
            assert (image.mode, image.size) == ("P", size)
        background = read(out, name)["class_names"][0] == "background"
        np.testing.assert_array_equal(colors, class_palette(background=background)[mask])
        for number, label in enumerate(read(out, name)["class_names"]):
            share = read(out, name)["shares"].get(label, 0.0)
            assert (mask == number).mean() == pytest.approx(share, abs=1e-6)
        with Image.open(out / "overlays" / f"{name}.png") as image:
            assert image.size == size
    assert run(line, tmp_path / "crop", photos / "wide.png", "--resize-mode", "crop") == 0
    mask = np.asarray(Image.open(tmp_path / "crop" / "masks" / "wide.png"))
    assert (mask[:, :20] == 255).all()  # outside of the crop
    assert (mask[:, 40:60] != 255).all()


def test_scan_paths(run: Run, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    out, line = tmp_path / "out", "glimpse --model eye.safetensors --out"
    Image.new("L", (30, 20), 77).save(photos / "coverage.png")
    assert run(line, out, photos, "--figures", "svg") == 0
    rows = {
        line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()
    }
    assert rows.keys() == {*NAMES, "coverage_2"}  # coverage.svg is the mean of all
    files = {f"{name}.{kind}" for name in rows for kind in ("svg", "json")}
    assert names(out) == {*files, "coverage.svg", "index.html", "glimpse.csv"}
    records = {name: read(out, name) for name in rows}
    assert {
        name: [each["class"], f"{each['probability']:.3f}"] for name, each in records.items()
    } == rows
    shown = {
        n: f"{each['class']}, {format_percent(each['probability'])}" for n, each in records.items()
    }
    assert cards_of(out) == shown
    options = {"policy": "sampled", "seed": 7, "resize_mode": "pad"}
    words = ["--policy", "sampled", "--seed", "7", "--resize-mode", "pad"]
    assert run(line, tmp_path / "one", photos / "wide.png", *words) == 0
    assert not (tmp_path / "one" / "coverage.png").exists()
    record = read(tmp_path / "one", "wide")
    [known] = glimpses(va.load("eye.safetensors"), photos / "wide.png", **options)
    again = ScanPath.from_dict(record)
    assert torch.equal(again.patches, known.patches)
    for key in ("locations", "boxes", "probabilities"):
        assert record[key] == getattr(known, key).tolist()
    assert again.geometry == known.maps.geometry
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "coverage.png").write_bytes(b"of the user")
    assert run(line, tmp_path / "kept", photos) == 1
    assert "holds coverage.png, which would be replaced" in capsys.readouterr().err
