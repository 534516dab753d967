"""`visattn score maps` from end to end, with small models of random weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from segmentation_data import write_coco

from visattn.cli import main
from visattn.commands.files import file_digest
from visattn.models.resnet import AttentionResNet
from visattn.models.saving import save
from visattn.pipelines.evaluate_maps import MapEvaluator

Capsys = pytest.CaptureFixture[str]
CNN = ["--model", "timm:test_resnet", "--input-size", "64", "--model-args", "pretrained=false"]


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images with a square each, and a person at the left end of some."""
    folder = tmp_path_factory.mktemp("coco")
    photos, objects = [], []
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 99, (96, 120, 3), dtype=np.uint8)
        x, y = 40 + 8 * number, 20 + 5 * number
        pixels[y : y + 30, x : x + 30] = 220
        photos.append(pixels)
        objects.append((number, ("zebra", "bird")[number % 2], (x, y, 30, 30)))
        if number in (1, 2):
            objects.append((number, "person", (0, 0, 9, 96)))
        if number == 4:
            objects.append((number, "bird", (0, 0, 5, 5)))  # outside of the crop
    write_coco(folder, "val", photos, objects, {"zebra": 24, "bird": 16, "person": 1})
    return folder


def run(*words: str | Path, out: Path) -> int:
    return main(["score", "maps", *map(str, words), "--out", str(out)])


def test_methods_are_listed_above_the_baselines(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "new" / "scores"
    words = [*CNN, "--data", coco, "--methods", "gradcam", "layercam", "--sanity-checks", "1"]
    assert run(*words, out=out) == 0
    printed, output = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split() == (
        ["point", "in", "box", "hard", "energy", "enrich", "IoU", "insert", "delete", "ROAD"]
    )
    assert [line.split()[0] for line in lines[1:5]] == ["gradcam", "layercam", "random", "center"]
    assert "x 100; 5 maps of 2 categories on 5 images; target: class of each category" in lines
    assert "no class for person: 2 objects excluded" in lines
    assert "outside of the network's input: 1 excluded" in lines
    assert lines[-1].startswith("model:timm:test_resnet|weights:random|data:coco")
    assert "|target:category|" in lines[-1]
    assert "the weights are random" in output
    results = json.loads((out / "scores.json").read_text())
    assert results["scores"]["gradcam"]["count"] == 5
    assert results["missing_categories"] == {"person": 2}
    assert len(results["sanity_checks"]["gradcam"]["randomized"]) == 6
    assert results["sanity_checks"]["center"]["other_class"] == pytest.approx(1)
    assert results["sanity_checks"]["center"]["randomized"][-1] == pytest.approx(1)


def test_runs_resume_and_write_the_same_files(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    _masked(tmp_path, "left/0", "right/0", "c")
    words = [*CNN, "--data", tmp_path / "photos", "--methods", "gradcam"]
    assert run(*words, out=tmp_path / "a") == 0
    assert "3 images; target: prediction of the model, all objects count" in capsys.readouterr().out
    first = [(tmp_path / "a" / name).read_bytes() for name in ("rows.jsonl", "scores.json")]
    _, *rows = map(json.loads, first[0].decode().splitlines())
    assert {row["image"] for row in rows} == {"left/0.png", "right/0.png", "c.png"}
    for part in ("1/2", "2/2"):
        assert run(*words, "--shard", part, out=tmp_path / "b") == 0
    out = tmp_path / "b"
    assert [(out / name).read_bytes() for name in ("rows.jsonl", "scores.json")] == first
    (out / "rows" / "c.json").unlink()
    (out / "rows.jsonl").unlink()
    images: list[str] = []
    evaluate = MapEvaluator.evaluate

    def counted(self: MapEvaluator, batch: Any, *args: Any) -> Any:
        images.extend(query.image.name for query in batch)
        return evaluate(self, batch, *args)

    monkeypatch.setattr(MapEvaluator, "evaluate", counted)
    assert run(*words, out=out) == 0
    assert images == ["c.png"]
    assert [(out / name).read_bytes() for name in ("rows.jsonl", "scores.json")] == first


def test_files_of_others_are_not_replaced(tmp_path: Path, capsys: Capsys) -> None:
    _masked(tmp_path, "a")
    out = tmp_path / "out"
    out.mkdir()
    (out / "rows.jsonl").write_text('{"settings": {"seed": 0}}\n')
    words = [*CNN, "--data", tmp_path / "photos", "--methods", "gradcam"]
    assert run(*words, out=out) == 1
    assert "rows.jsonl, which would be replaced" in capsys.readouterr().err
    assert (out / "rows.jsonl").read_text() == '{"settings": {"seed": 0}}\n'
    assert run(*words, "--overwrite", out=out) == 0


def _masked(folder: Path, *names: str) -> None:
    """Write photos of noise, each with a mask of its name."""
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 255, (60, 50, 3), dtype=np.uint8)
        mask = np.zeros((60, 50), dtype=np.uint8)
        mask[20:40, 10:30] = 255
        for kind, content in (("photos", pixels), ("masks", mask)):
            path = folder / kind / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(content).save(path)


def test_scores_of_changed_weights_are_not_mixed(tmp_path: Path, capsys: Capsys) -> None:
    _masked(tmp_path, "a")
    file = tmp_path / "cnn.safetensors"
    words = ["--model", file, "--data", tmp_path / "photos", "--methods", "gradcam"]
    for _ in range(2):
        save(AttentionResNet(("ant", "bee"), depth=8, stem_width=4, img_size=(32, 32)), file)
        assert run(*words, out=tmp_path / "out") == 0
        assert f"weights:cnn.safetensors@{file_digest(file)}|" in capsys.readouterr().out
        head, *_ = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
        assert file_digest(file) in head


def test_unusable_images_are_reported(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    data = shutil.copytree(coco, tmp_path / "coco")
    (data / "val" / "0.png").write_bytes(b"none")
    Image.new("RGB", (96, 120)).save(data / "val" / "1.png")
    assert run(*CNN, "--data", data, "--methods", "gradcam", out=tmp_path / "out") == 1
    printed, output = capsys.readouterr()
    assert "3 maps of 2 categories on 3 images" in printed
    assert "0.png: not an image of a known format" in output
    assert "1.png: it has 96 x 120 pixels, its annotations 120 x 96" in output
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["skipped"] == [
        "0.png",
        "1.png",
    ]


def test_targets_without_a_class_are_refused(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["--data", coco, "--methods", "gradcam", *CNN, "num_classes=7"]
    assert run(*words, out=tmp_path / "out") == 1
    assert "the model has no class for zebra, bird, person" in capsys.readouterr().err
    assert run(*words, "--target", "predicted", out=tmp_path / "out") == 0
