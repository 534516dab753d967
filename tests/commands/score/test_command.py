"""`visattn score captions` from end to end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from visattn.cli import main
from visattn.metrics import captions as caption_metrics

Capsys = pytest.CaptureFixture[str]
GOLDEN = json.loads((Path(__file__).parents[2] / "metrics" / "golden_captions.json").read_text())[
    "sets"
]["plain"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    entries = [{"image_id": name, "caption": output} for name, output in GOLDEN["captions"].items()]
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture
def references(tmp_path: Path) -> Path:
    path = tmp_path / "references.txt"
    lines = [
        f"{name}.jpg#{number}\t{line}\n"
        for name, record in GOLDEN["references"].items()
        for number, line in enumerate(record)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_scores_are_printed_as_table_and_line_and_saved(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "scores.json"
    assert main(["score", "captions", str(results), str(references), "--out", str(out)]) == 0
    printed, output = capsys.readouterr()
    assert printed.splitlines() == [
        " BLEU-1   BLEU-2   BLEU-3   BLEU-4  ROUGE-L  CIDEr-D",
        "   72.9     51.3     30.2     15.5     49.4     73.4",
        "",
        "x 100; 28 images, 5 references each",
        "METEOR: not computed (not requested)",
        "SPICE: not computed (not requested)",
        "tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(5)|n:28|visattn:0.1.0",
    ]
    assert output.startswith("visattn: CIDEr-D over 28 images is unreliable")
    matches: dict[str, Any] = json.loads(out.read_text())
    assert list(matches["scores"].values()) == pytest.approx(GOLDEN["corpus"], abs=1e-12)
    assert matches["signature"] == printed.splitlines()[-1]
    assert matches["not_computed"] == {"METEOR": "not requested", "SPICE": "not requested"}
    assert f"visattn: {matches['warnings'][0]}\nvisattn: open {out}\n" == output
    assert list(matches["per_image"]["owl.jpg"].values()) == pytest.approx(
        GOLDEN["per_image"]["owl"], abs=1e-12
    )


@pytest.mark.parametrize("form", ["flickr", "csv", "karpathy", "coco", "jsonl"])
def test_all_reference_formats_give_the_same_scores(
    form: str, tmp_path: Path, results: Path, capsys: Capsys
) -> None:
    record = GOLDEN["references"]
    files = [f"{name}.jpg" for name in record]
    texts = {
        "flickr": "".join(
            f"{file}#{n}\t{line}\n"
            for file, lines in zip(files, record.values(), strict=True)
            for n, line in enumerate(lines)
        ),
        "csv": "image,caption\n"
        + "".join(
            '{},"{}"\n'.format(file, line.replace('"', '""'))
            for file, lines in zip(files, record.values(), strict=True)
            for line in lines
        ),
        "karpathy": json.dumps(
            {
                "images": [
                    {"filename": file, "split": "test", "sentences": [{"raw": x} for x in lines]}
                    for file, lines in zip(files, record.values(), strict=True)
                ]
            }
        ),
        "coco": json.dumps(
            {
                "images": [{"id": n, "file_name": file} for n, file in enumerate(files)],
                "annotations": [
                    {"id": 7 * n + m, "image_id": n, "caption": line}
                    for n, lines in enumerate(record.values())
                    for m, line in enumerate(lines)
                ],
            }
        ),
        "jsonl": "".join(
            json.dumps({"file": file, "captions": lines}) + "\n"
            for file, lines in zip(files, record.values(), strict=True)
        ),
    }
    path = tmp_path / f"references.{form}"
    path.write_text(texts[form], encoding="utf-8")
    assert main(["score", "captions", str(results), str(path)]) == 0
    assert "72.9     51.3     30.2     15.5     49.4     73.4" in capsys.readouterr().out


def test_output_of_visattn_caption_can_be_scored(
    references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    lines = [f"{name}\t{output}\n" for name, output in reversed(GOLDEN["captions"].items())]
    (tmp_path / "captions.tsv").write_text("".join([*lines, lines[3]]))
    assert main(["score", "captions", str(tmp_path / "captions.tsv"), str(references)]) == 0
    printed, output = capsys.readouterr()
    assert "73.4" in printed
    assert "captions.tsv: 1 image more than once, with the same caption" in output


def test_a_split_is_a_file_or_a_name(tmp_path: Path, capsys: Capsys) -> None:
    images = [
        {"filename": f"{name}.jpg", "split": split, "sentences": [{"raw": f"a {name}"}]}
        for name, split in (("ring", "train"), ("cross", "val"), ("star", "val"))
    ]
    (tmp_path / "references.json").write_text(json.dumps({"images": images}))
    (tmp_path / "captions.tsv").write_text("cross\ta cross\nstar\ta ring\n")
    (tmp_path / "list.txt").write_text("star.jpg\ncross.jpg\n")
    words = ["score", "captions", str(tmp_path / "captions.tsv"), str(tmp_path / "references.json")]
    for split in ("val", str(tmp_path / "list.txt")):
        assert main([*words, "--split", split]) == 0
        assert "x 100; 2 images, 1 reference each" in capsys.readouterr().out
    assert main(words) == 1
    assert "--split selects references (train, val)" in capsys.readouterr().err
    assert main([*words, "--split", "test"]) == 1
    assert "test is neither a split of the captions file" in capsys.readouterr().err


def test_intersection_scores_the_shared_images_and_reports_the_rest(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    kept = [line for line in references.read_text().splitlines() if not line.startswith("owl")]
    references.write_text("\n".join(kept))
    words = ["score", "captions", str(results), str(references)]
    assert main(words) == 1
    assert "in the results without references: 1 image (owl)" in capsys.readouterr().err
    out = tmp_path / "scores.json"
    assert main([*words, "--intersection", "--out", str(out)]) == 0
    printed, output = capsys.readouterr()
    assert "n:27" in printed
    left = "excluded, in the results without references: 1 image (owl)"
    assert f"visattn: {left}\n" in output
    assert left in json.loads(out.read_text())["warnings"]


def test_java_runs_only_with_its_option(
    results: Path, references: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(caption_metrics, "java_score", lambda *record: "no java")
    assert main(["score", "captions", str(results), str(references), "--java"]) == 0
    assert (
        "METEOR: not computed (no java)\nSPICE: not computed (no java)" in capsys.readouterr().out
    )


def test_each_problem_of_the_references_is_one_line(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "references.txt").write_text("a.jpg#0\ta ring\na.jpg#1\t \n")
    (tmp_path / "captions.tsv").write_text("a\tring\n")
    words = [str(tmp_path / "captions.tsv"), str(tmp_path / "references.txt")]
    assert main(["score", "captions", *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["visattn", "visattn"]
    assert "1 empty caption" in lines[0]
    assert "over one image is 0" in lines[1]


@pytest.mark.parametrize(
    ("place", "output"),
    [("results.json", "would replace an input file"), (".", "is not a regular file")],
)
def test_out_replaces_no_foreign_file(
    place: str, output: str, results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = results.read_text()
    words = ["score", "captions", str(results), str(references)]
    assert main([*words, "--out", str(tmp_path / place)]) == 1
    assert output in capsys.readouterr().err
    assert results.read_text() == before


def test_out_replaces_no_device_and_follows_links(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ["score", "captions", str(results), str(references), "--out"]
    os.mkfifo(tmp_path / "pipe")
    assert main([*words, str(tmp_path / "pipe")]) == 1
    assert "is not a regular file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "deeper" / "scores.json")
    assert main([*words, str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "deeper" / "scores.json").read_text())["signature"]


def test_a_missing_file_is_named_and_nothing_is_written(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    for words in ([str(tmp_path / "no.json"), str(references)], [str(results), "no.txt"]):
        assert main(["score", "captions", *words, "--out", str(tmp_path / "new" / "s.json")]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "is not a file" in err
    assert not (tmp_path / "new").exists()
