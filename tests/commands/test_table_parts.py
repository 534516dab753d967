"""`--save table`: a parquet part per slice of the photos, in place of files per photo."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import visattn as va
from visattn.cli import main
from visattn.commands import table_parts

parquet = pytest.importorskip("pyarrow.parquet")
Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table_parts, "PART_SIZE", 2)
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(5):
        pixels = np.random.default_rng(seed).integers(0, 256, (29, 41, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    (folder / "3.png").write_bytes(b"no image")
    return folder


def overlay(photos: Path, cnn: str, out: Path, *words: str) -> int:
    options = ("--model", cnn, "--method", "gradcam", "layercam", "--save", "table")
    return main(["overlay", str(photos), *options, "--batch-size", "1", "--out", str(out), *words])


def written(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir())}


def test_a_table_has_a_row_per_photo_and_method_and_resumes_by_parts(
    photos: Path, cnn: str, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "maps"
    assert overlay(photos, cnn, out) == 1
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "part-000000.parquet\t2\t0",
        "part-000001.parquet\t2\t1",
        "part-000002.parquet\t1\t0",
    ]
    assert "1 of 5 images skipped" in output.err
    first = written(out)
    assert [*first] == [f"part-00000{number}.parquet" for number in range(3)]
    rows = [row for name in first for row in parquet.read_table(out / name).to_pylist()]
    assert [(row["name"], row["method"]) for row in rows] == [
        (str(number), method) for number in range(5) for method in ("gradcam", "layercam")
    ]
    assert [row["name"] for row in rows if row["error"]] == ["3", "3"]
    assert "not an image" in rows[6]["error"]
    loaded = va.load_model(cnn)
    for row in rows[:6] + rows[8:]:
        [heatmap] = va.explain(loaded, row["path"], row["method"])
        restored = va.AttentionMap.from_row(row)
        assert torch.equal(restored.values, heatmap.values)
        assert restored.geometry == heatmap.geometry
    assert overlay(photos, cnn, out) == 1  # the part of the unreadable photo is as it was
    assert written(out) == first
    (photos / "3.png").write_bytes((photos / "0.png").read_bytes())
    assert overlay(photos, cnn, out) == 0
    second = written(out)
    assert [name for name in first if first[name] != second[name]] == ["part-000001.parquet"]
    assert overlay(photos, cnn, out, "--method-arg", "layer=-2") == 0
    assert not set(written(out).values()) & set(second.values())


def test_shards_write_the_parts_of_one_table(
    photos: Path, cnn: str, tmp_path: Path, capsys: Capsys
) -> None:
    overlay(photos, cnn, tmp_path / "whole")
    capsys.readouterr()
    overlay(photos, cnn, tmp_path / "parts", "--shard", "2/2")
    assert "of the 1 parts of other shards 1 are not written yet" in capsys.readouterr().err
    overlay(photos, cnn, tmp_path / "parts", "--shard", "1/2")
    assert "of the 2 parts of other shards all are written" in capsys.readouterr().err
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("whole", "parts")
    ]
    assert contents[0] == contents[1]


def test_parts_that_do_not_belong_to_the_table_are_refused(
    photos: Path, cnn: str, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "maps"
    overlay(photos, cnn, out)
    for name in ("3.png", "4.png"):
        (photos / name).unlink()
    capsys.readouterr()
    assert overlay(photos, cnn, out) == 1
    assert "part-000002.parquet, which does not belong to the table" in capsys.readouterr().err
    (out / "part-000002.parquet").write_bytes(b"mine")
    assert overlay(photos, cnn, out) == 1
    assert "visattn did not write it" in capsys.readouterr().err


def test_captions_are_a_table_too(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    words = ["caption", str(photos), "--model", "scenes-captioner", "--beam-size", "2"]
    assert main([*words, "--out", str(tmp_path / "captions"), "--save", "table"]) == 1
    rows = parquet.read_table(tmp_path / "captions" / "part-000001.parquet").to_pylist()
    [expected] = va.caption(va.load("scenes-captioner"), photos / "2.png", beam_size=2)
    assert [rows[0]["caption"], rows[0]["words"]] == [expected.text, [*expected.words]]
    assert (rows[1]["caption"], rows[1]["words"]) == ("", [])
    assert rows[0]["map"] == expected.maps.values.flatten().tolist()
    assert "table: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("overlay --method gradcam --save table overlay --out o", "name it alone"),
        ("overlay --method gradcam --save table --explorer --out o", "--explorer draws or adds"),
        ("overlay --method gradcam --save table --style blur --out o", "--style draws or adds"),
        ("caption --save table --gif --out o", "--gif draws or adds files"),
        ("caption --save table --num-captions 2 --out o", "--num-captions draws or adds"),
        ("caption --save table", "--save needs an output folder"),
        ("detect --save table --width 900 --out o", "--width draws or adds files"),
    ],
)
def test_options_that_draw_are_refused_beside_a_table(
    words: str, reason: str, photos: Path, cnn: str, capsys: Capsys
) -> None:
    command, *options = words.split()
    assert main([command, str(photos), "--model", cnn, *options]) == 2
    assert reason in capsys.readouterr().err
