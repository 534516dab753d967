"""`visattn score maps` from end to end, with small models of random weights."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.cli import main
from visattn.commands.model_option import file_digest
from visattn.commands.score.evaluate_maps import MapEvaluator
from visattn.models.resnet import AttentionResNet
from visattn.models.saving import save

Capsys = pytest.CaptureFixture[str]
CNN = ["--model", "timm:test_resnet"]
VIT = ["--model", "timm:test_vit"]
FAST = ["--scores", "localization"]
THINGS = {"zebra": 24, "bird": 16, "person": 1}


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five images with a square each, and a person at the left end of some."""
    folder = tmp_path_factory.mktemp("coco")
    (folder / "annotations").mkdir()
    (folder / "val").mkdir()
    images, objects = [], []
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 99, (96, 120, 3), dtype=np.uint8)
        x, y = 40 + 8 * number, 20 + 5 * number
        pixels[y : y + 30, x : x + 30] = 220
        Image.fromarray(pixels).save(folder / "val" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 96, "width": 120})
        name = ("zebra", "bird")[number % 2]
        objects.append(_object(number, name, (x, y, 30, 30)))
        if number in (1, 2):
            objects.append(_object(number, "person", (0, 0, 9, 96)))
        if number == 4:
            objects.append(_object(number, "bird", (0, 0, 5, 5)))  # outside of the crop
    record = {
        "images": images,
        "annotations": objects,
        "categories": [{"id": number, "name": name} for name, number in THINGS.items()],
    }
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(record))
    return folder


def _object(number: int, name: str, box: tuple[int, int, int, int]) -> dict[str, Any]:
    x, y, width, height = box
    outline = [x, y, x + width, y, x + width, y + height, x, y + height]
    return {
        "image_id": number,
        "category_id": THINGS[name],
        "bbox": list(box),
        "segmentation": [outline],
    }


def run(*words: str | Path) -> int:
    return main(["score", "maps", *map(str, words)])


def test_methods_are_listed_above_the_baselines(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "new" / "scores"
    words = [*CNN, "--data", coco, "--methods", "gradcam", "layercam", "--steps", "2"]
    words += ["--scores", "localization", "insertion_deletion"]
    assert run(*words, "--sanity-checks", "1", "--batch-size", "4", "--out", out) == 0
    printed, output = capsys.readouterr()
    lines = printed.splitlines()
    assert lines[0].split() == (
        ["point", "in", "box", "hard", "energy", "enrich", "IoU", "insert", "delete"]
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


def test_reruns_and_resumed_runs_write_the_same_file(
    coco: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*CNN, "--data", coco, "--methods", "gradcam", "--batch-size", "2", "--steps", "1"]
    words += ["--scores", "localization", "insertion_deletion"]
    torch.manual_seed(1)
    assert run(*words, "--out", tmp_path / "a") == 0
    first = (tmp_path / "a" / "rows.jsonl").read_bytes()
    torch.manual_seed(1)
    assert run(*words, "--out", tmp_path / "b") == 0
    assert (tmp_path / "b" / "rows.jsonl").read_bytes() == first
    (tmp_path / "b" / "rows.jsonl").unlink()
    for name in ("2", "4"):
        (tmp_path / "b" / "rows" / f"{name}.json").unlink()
    torch.manual_seed(1)
    assert run(*words, "--out", tmp_path / "b") == 0
    assert (tmp_path / "b" / "rows.jsonl").read_bytes() == first
    numbers = (tmp_path / "b" / "scores.json").read_bytes()
    assert numbers == (tmp_path / "a" / "scores.json").read_bytes()

    def nothing_left(*_: object, **__: object) -> None:
        raise AssertionError("all is known")

    monkeypatch.setattr(MapEvaluator, "evaluate", nothing_left)
    assert run(*words, "--out", tmp_path / "b") == 0
    monkeypatch.undo()
    torch.manual_seed(1)
    assert run(*words, "--seed", "1", "--out", tmp_path / "b") == 0
    assert '"seed": 1' in (tmp_path / "b" / "scores.json").read_text()


def test_an_earlier_folder_of_scores_is_refused(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "rows.jsonl").write_text('{"settings": {"seed": 0}}\n')
    words = [*CNN, "--data", coco, "--methods", "gradcam", *FAST, "--out", tmp_path]
    assert run(*words) == 1
    assert "holds rows.jsonl, which would be replaced" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 0


def test_road_imputes_removed_pixels(coco: Path, capsys: Capsys) -> None:
    words = [*CNN, "--data", coco, "--methods", "gradcam", "--scores", "road", "--limit", "1"]
    assert run(*words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["ROAD"]
    assert [line.split()[0] for line in printed[1:4]] == ["gradcam", "random", "center"]


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


def test_scores_of_changed_weights_are_not_mixed(
    coco: Path, tmp_path: Path, capsys: Capsys
) -> None:
    file = tmp_path / "cnn.safetensors"
    words = ["--model", file, "--data", coco, "--methods", "gradcam", *FAST, "--limit", "1"]
    words += ["--target", "predicted", "--out", tmp_path / "out"]
    save(AttentionResNet(("ant", "bee"), depth=8, stem_width=4, img_size=(32, 32)), file)
    assert run(*words) == 0
    assert f"weights:cnn.safetensors@{file_digest(file)}|" in capsys.readouterr().out
    save(AttentionResNet(("ant", "bee"), depth=8, stem_width=4, img_size=(32, 32)), file)
    assert run(*words) == 0
    assert f"weights:cnn.safetensors@{file_digest(file)}|" in capsys.readouterr().out
    head, *_ = (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    assert file_digest(file) in head


def test_predicted_classes_on_a_folder_with_masks(tmp_path: Path, capsys: Capsys) -> None:
    _masked(tmp_path, "a", "b")
    assert run(*CNN, "--data", tmp_path / "photos", "--methods", "gradcam", *FAST) == 0
    assert "2 images; target: prediction of the model, all objects count" in capsys.readouterr().out


def test_images_with_the_same_name_are_all_scored(tmp_path: Path, capsys: Capsys) -> None:
    _masked(tmp_path, "left/0", "right/0")
    words = [*CNN, "--data", tmp_path / "photos", "--methods", "gradcam", *FAST]
    assert run(*words, "--out", tmp_path / "scores") == 0
    assert "2 images" in capsys.readouterr().out
    _, *rows = map(json.loads, (tmp_path / "scores" / "rows.jsonl").read_text().splitlines())
    assert {row["image"] for row in rows} == {"left/0.png", "right/0.png"}


def test_diagnostics_of_a_transformer(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = [*VIT, "--data", coco, "--limit", "2", "--methods", "rollout", *FAST]
    assert run(*words, "--diagnostics", "2", "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "means over heads" in printed
    results = json.loads((tmp_path / "diagnostics.json").read_text())
    assert results["images"] == 2
    assert len(results["layers"]) == 6
    assert 0 < results["layers"][0]["entropy"][0] <= 1
    with Image.open(tmp_path / "diagnostics.png") as opened:
        assert opened.size[0] == 7 * 200  # inches, dots per inch


def test_unusable_images_are_reported(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "val").mkdir()
    for path in sorted((coco / "val").iterdir()):
        (tmp_path / "val" / path.name).write_bytes(path.read_bytes())
    record = (coco / "annotations" / "instances_val.json").read_text()
    (tmp_path / "annotations" / "instances_val.json").write_text(record)
    (tmp_path / "val" / "0.png").write_bytes(b"none")
    Image.new("RGB", (96, 120)).save(tmp_path / "val" / "1.png")
    assert run(*CNN, "--data", tmp_path, "--methods", "gradcam", *FAST) == 1
    printed, output = capsys.readouterr()
    assert "3 maps of 2 categories on 3 images" in printed
    assert "0.png: not an image of a known format" in output
    assert "1.png: it has 96 x 120 pixels, its annotations 120 x 96" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "gradcam", "rolout"], "got 'rolout'; did you mean rollout"),
        (["--methods", "rollout"], "rollout does not fit"),
        (["--methods", "gradcam", "--diagnostics", "2"], "needs an output folder, --out DIR"),
        (["--methods", "gradcam", "--threshold", "1"], "threshold from 0 to below 1"),
    ],
)
def test_invalid_combinations_end_with_a_message(
    words: list[str], message: str, coco: Path, capsys: Capsys
) -> None:
    assert run(*CNN, "--data", coco, *words) == 1
    assert message in capsys.readouterr().err


def test_targets_without_a_class_are_refused(coco: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["--data", coco, "--methods", "gradcam", "--model-arg", "num_classes=7"]
    assert run(*CNN, *words) == 1
    assert "the model has no class for zebra, bird, person" in capsys.readouterr().err
    assert run(*CNN, *words, *FAST, "--target", "predicted") == 0


def test_method_arguments_need_names(capsys: Capsys) -> None:
    words = ["--data", "x", "--methods", "gradcam", "--model-arg", "nothing"]
    assert run(*CNN, *words) == 2
    assert "must be NAME=VALUE, got 'nothing'" in capsys.readouterr().err


@pytest.mark.data
def test_gradcam_localizes_coco_objects_better_than_the_center(tmp_path: Path) -> None:
    data = Path(os.environ["VISATTN_DATA"])
    weights = data / "weights" / "mobilenetv2_100.safetensors"
    words = ["--model", "timm:mobilenetv2_100", "--weights", weights, "--data", data / "coco"]
    words += ["--model-arg", "pad_type=same", "mean=0.5", "std=0.5"]
    assert run(*words, *FAST, "--methods", "gradcam", "layercam", "--out", tmp_path) == 0
    results = json.loads((tmp_path / "scores.json").read_text())["scores"]
    for method in ("gradcam", "layercam"):
        assert results[method]["point"] > results["center"]["point"] + 0.05
        assert results[method]["point_box"] > results["center"]["point_box"] + 0.08
        assert results[method]["iou"] > 1.3 * results["center"]["iou"]
    assert results["gradcam"]["enrichment"] > 1.4
    assert results["random"]["enrichment"] == pytest.approx(1, abs=0.1)
