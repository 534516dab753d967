"""`visattn audit`: report, resuming, shards, files of the user, and mistakes."""

import json
from pathlib import Path

import planted_photos as planted
import pytest
import torch
from PIL import Image

import visattn as va
from visattn.cli import main

Capsys = pytest.CaptureFixture[str]
CODE = Path(planted.__file__)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted.write_photos(tmp_path_factory.mktemp("photos"), "tag")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "classes.txt").write_text("\n".join(planted.CLASSES))
    torch.save(planted.ColorNet(tag=160.0).state_dict(), folder / "weights.pt")
    return [
        "--model", f"{CODE}:ColorNet", "--weights", str(folder / "weights.pt"),
        "--transform", f"{CODE}:transform", "--classes", str(folder / "classes.txt"),
    ]  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    """The files of the report; the number of edited images is part of it."""
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".csv", ".npy")
    }


def test_report_is_resumed_and_equal_in_shards(
    photos: Path, model: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    run = ["audit", str(photos), *model, "--budget", "1500"]
    out = tmp_path / "out"
    assert main([*run, "--out", str(out), "--fail-on", "0.5"]) == 1
    assert "blue\tpatches 1\t+" in capsys.readouterr().out
    whole = files(out)
    findings = json.loads((out / "findings.json").read_text())
    assert findings["findings"][0]["status"] == "confirmed"
    assert findings["accuracy"] > 0.9
    assert len((out / "rows.csv").read_text().splitlines()) == 1 + 3 * planted.COUNT

    record = next((out / "photos").rglob("*.json"))
    others = {path: path.stat().st_mtime_ns for path in (out / "photos").rglob("*.json")}
    record.unlink()
    assert main([*run, "--out", str(out)]) == 0
    assert files(out) == whole
    again = {path: path.stat().st_mtime_ns for path in (out / "photos").rglob("*.json")}
    assert {path for path in others if again[path] != others[path]} == {record}

    shards = tmp_path / "shards"
    for number in (1, 2):
        part = ["--budget", "0", "--shard", f"{number}/2", "--out", str(shards)]
        assert main([*run[:-2], *part]) == 0
    assert files(shards) == whole


def test_objects_groups_stamps_and_another_model(
    photos: Path, model: list[str], tmp_path: Path
) -> None:
    """Boxes may be those of more photos; without seeds of the other model nothing is judged."""
    files = sorted(photos.rglob("*.png"))
    half = [
        {"image_id": n, "category_id": 1, "bbox": [0, 0, 64, 32]} for n in range(len(files) + 1)
    ]
    names = [*(str(file.relative_to(photos)) for file in files), "elsewhere.png"]
    sized = [
        {"id": n, "file_name": name, "height": 64, "width": 64} for n, name in enumerate(names)
    ]
    content = {"images": sized, "annotations": half, "categories": [{"id": 1, "name": "half"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    table = [f"{name},{'AB'[n % 2]},p{n // 3}" for n, name in enumerate(names[:-1])]
    (tmp_path / "groups.csv").write_text("\n".join(["image,camera,patient", *table]))
    Image.new("RGB", (12, 6), "red").save(tmp_path / "logo.png")
    run = ["audit", str(photos), *model]
    first, second = (str(tmp_path / name) for name in ("first", "second"))
    with_files = [
        "--boxes", str(tmp_path / "boxes.json"), "--groups", str(tmp_path / "groups.csv"),
        "--unit", "patient", "--stamp", str(tmp_path / "logo.png"), "--budget", "1400",
    ]  # fmt: skip
    assert main([*run, *with_files, "--out", first]) == 0
    report = va.load_audit(first)
    objects = [row for row in report.content.regions if row.region == "objects"]
    assert [round(row.area, 2) for row in objects] == [0.5] * 4
    assert objects[0].class_name == "all photos"
    assert objects[0].photos == sum(row.photos for row in objects[1:]) == len(files)
    assert {"camera: A", "camera: B"} <= {row.group for row in report.content.groups}
    assert "logo.png" in {finding.name for finding in report.findings}
    assert main([*run, "--budget", "0", "--against", first, "--out", second]) == 0
    assert "cannot be judged" in Path(second, "report.html").read_text()


def test_files_of_the_user_stay(photos: Path, model: list[str], tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    assert main(["audit", str(photos / "blue"), *model, "--out", str(tmp_path)]) == 1
    assert (tmp_path / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--unit", "patient"], "columns, --groups CSV"),
        (["--seeds", "a"], "--against DIR"),
        (["--reference", "a"], "two audits at least"),
        (["--fail-on", "0.1"], "below --min-effect 0.5"),
        (["--boxes", "a.json", "--masks", "b"], "pass one of them"),
    ],
)
def test_mistakes_are_usage_errors(options: list[str], message: str, capsys: Capsys) -> None:
    assert main(["audit", "photos", "--model", "timm:resnet18", "--out", "o", *options]) == 2
    assert message in capsys.readouterr().err
