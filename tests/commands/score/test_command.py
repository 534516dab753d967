"""`visattn score captions` from end to end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from visattn.cli import main
from visattn.metrics.captioning import scores as caption_metrics

Capsys = pytest.CaptureFixture[str]
GOLDEN = json.loads((Path(__file__).parents[2] / "metrics" / "captioning" / "golden_captions.json").read_text())[
    "sets"
]["plain"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.json"
    entries = [{"image_id": name, "caption": said} for name, said in GOLDEN["captions"].items()]
    path.write_text(json.dumps(entries))
    return path


@pytest.fixture
def references(tmp_path: Path) -> Path:
    path = tmp_path / "references.txt"
    lines = [
        f"{name}.jpg#{number}\t{line}\n"
        for name, told in GOLDEN["references"].items()
        for number, line in enumerate(told)
    ]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_a_table_a_line_and_a_file(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "new" / "scores.json"
    assert main(["score", "captions", str(results), str(references), "--out", str(out)]) == 0
    printed, said = capsys.readouterr()
    assert printed.splitlines() == [
        " BLEU-1   BLEU-2   BLEU-3   BLEU-4  ROUGE-L  CIDEr-D",
        "   72.9     51.3     30.2     15.5     49.4     73.4",
        "",
        "x 100; 28 images, 5 references each",
        "METEOR: not computed (not asked for)",
        "SPICE: not computed (not asked for)",
        "tok:ptb-py|bleu:closest|rouge:1.2|cider:D|df:eval|refs:all(5)|n:28|visattn:0.1.0",
    ]
    assert said.startswith("visattn: CIDEr-D over 28 images says little")
    found: dict[str, Any] = json.loads(out.read_text())
    assert list(found["scores"].values()) == pytest.approx(GOLDEN["corpus"], abs=1e-12)
    assert found["signature"] == printed.splitlines()[-1]
    assert found["not_computed"] == {"METEOR": "not asked for", "SPICE": "not asked for"}
    assert f"visattn: {found['warnings'][0]}\n" == said
    assert list(found["per_image"]["owl.jpg"].values()) == pytest.approx(
        GOLDEN["per_image"]["owl"], abs=1e-12
    )


@pytest.mark.parametrize("form", ["flickr", "csv", "karpathy", "coco", "jsonl"])
def test_all_forms_of_references_give_the_same(
    form: str, tmp_path: Path, results: Path, capsys: Capsys
) -> None:
    told = GOLDEN["references"]
    files = [f"{name}.jpg" for name in told]
    texts = {
        "flickr": "".join(
            f"{file}#{n}\t{line}\n"
            for file, lines in zip(files, told.values(), strict=True)
            for n, line in enumerate(lines)
        ),
        "csv": "image,caption\n"
        + "".join(
            '{},"{}"\n'.format(file, line.replace('"', '""'))
            for file, lines in zip(files, told.values(), strict=True)
            for line in lines
        ),
        "karpathy": json.dumps(
            {
                "images": [
                    {"filename": file, "split": "test", "sentences": [{"raw": x} for x in lines]}
                    for file, lines in zip(files, told.values(), strict=True)
                ]
            }
        ),
        "coco": json.dumps(
            {
                "images": [{"id": n, "file_name": file} for n, file in enumerate(files)],
                "annotations": [
                    {"id": 7 * n + m, "image_id": n, "caption": line}
                    for n, lines in enumerate(told.values())
                    for m, line in enumerate(lines)
                ],
            }
        ),
        "jsonl": "".join(
            json.dumps({"file": file, "captions": lines}) + "\n"
            for file, lines in zip(files, told.values(), strict=True)
        ),
    }
    path = tmp_path / f"references.{form}"
    path.write_text(texts[form], encoding="utf-8")
    for words in ([], ["--format", form]):
        assert main(["score", "captions", str(results), str(path), *words]) == 0
        assert "72.9     51.3     30.2     15.5     49.4     73.4" in capsys.readouterr().out


def test_what_visattn_caption_prints_can_be_scored(
    references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    lines = [f"{name}\t{said}\n" for name, said in reversed(GOLDEN["captions"].items())]
    (tmp_path / "said.tsv").write_text("".join([*lines, lines[3]]))
    assert main(["score", "captions", str(tmp_path / "said.tsv"), str(references)]) == 0
    printed, said = capsys.readouterr()
    assert "73.4" in printed
    assert "said.tsv: 1 image more than once, with the same caption" in said


def test_a_split_is_a_list_or_a_name(tmp_path: Path, capsys: Capsys) -> None:
    images = [
        {"filename": f"{name}.jpg", "split": split, "sentences": [{"raw": f"a {name}"}]}
        for name, split in (("ring", "train"), ("cross", "val"), ("star", "val"))
    ]
    (tmp_path / "told.json").write_text(json.dumps({"images": images}))
    (tmp_path / "said.tsv").write_text("cross\ta cross\nstar\ta ring\n")
    (tmp_path / "list.txt").write_text("star.jpg\ncross.jpg\n")
    words = ["score", "captions", str(tmp_path / "said.tsv"), str(tmp_path / "told.json")]
    for split in ("val", str(tmp_path / "list.txt")):
        assert main([*words, "--split", split]) == 0
        assert "x 100; 2 images, 1 reference each" in capsys.readouterr().out
    assert main(words) == 1
    assert "--split chooses among the references (train, val)" in capsys.readouterr().err
    assert main([*words, "--split", "test"]) == 1
    assert "no photo is of split 'test'" in capsys.readouterr().err


def test_common_scores_what_both_hold_and_says_so(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    kept = [line for line in references.read_text().splitlines() if not line.startswith("owl")]
    references.write_text("\n".join(kept))
    words = ["score", "captions", str(results), str(references)]
    assert main(words) == 1
    assert "in the results without references: 1 image (owl)" in capsys.readouterr().err
    out = tmp_path / "scores.json"
    assert main([*words, "--common", "--out", str(out)]) == 0
    printed, said = capsys.readouterr()
    assert "n:27" in printed
    left = "left out, in the results without references: 1 image (owl)"
    assert f"visattn: {left}\n" in said
    assert left in json.loads(out.read_text())["warnings"]


def test_java_is_asked_for_with_a_word(
    results: Path, references: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(caption_metrics, "java_score", lambda *told: "no java")
    assert main(["score", "captions", str(results), str(references), "--java"]) == 0
    assert (
        "METEOR: not computed (no java)\nSPICE: not computed (no java)" in capsys.readouterr().out
    )


def test_what_is_odd_in_the_references_is_one_line_each(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "told.txt").write_text("a.jpg#0\ta ring\na.jpg#1\t \n")
    (tmp_path / "said.tsv").write_text("a\tring\n")
    words = [str(tmp_path / "said.tsv"), str(tmp_path / "told.txt")]
    assert main(["score", "captions", *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["visattn", "visattn"]
    assert "1 empty caption" in lines[0]
    assert "over one image is 0" in lines[1]


@pytest.mark.parametrize(
    ("place", "said"),
    [("results.json", "would replace what is scored"), (".", "is there and no file")],
)
def test_out_takes_nobodys_place(
    place: str, said: str, results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = results.read_text()
    words = ["score", "captions", str(results), str(references)]
    assert main([*words, "--out", str(tmp_path / place)]) == 1
    assert said in capsys.readouterr().err
    assert results.read_text() == before


def test_out_takes_no_place_of_a_device_and_follows_links(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ["score", "captions", str(results), str(references), "--out"]
    os.mkfifo(tmp_path / "pipe")
    assert main([*words, str(tmp_path / "pipe")]) == 1
    assert "is there and no file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "deeper" / "scores.json")
    assert main([*words, str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "deeper" / "scores.json").read_text())["signature"]


def test_a_file_that_is_missing_is_named_and_nothing_is_written(
    results: Path, references: Path, tmp_path: Path, capsys: Capsys
) -> None:
    for words in ([str(tmp_path / "no.json"), str(references)], [str(results), "no.txt"]):
        assert main(["score", "captions", *words, "--out", str(tmp_path / "new" / "s.json")]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "is no file" in err
    assert not (tmp_path / "new").exists()


def test_score_asks_what_is_to_be_scored(capsys: Capsys) -> None:
    assert main(["score"]) == 2
    assert "required: WHAT" in capsys.readouterr().err


def test_the_form_of_references_can_be_named(
    results: Path, references: Path, capsys: Capsys
) -> None:
    assert main(["score", "captions", str(results), str(references), "--format", "csv"]) == 1
    assert "(read as csv)" in capsys.readouterr().err
