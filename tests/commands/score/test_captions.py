"""`visattn score captions`: scores, files, and images matched by their names."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from visattn.cli import main
from visattn.commands.score.captions import match_captions
from visattn.data.captions.files import CaptionEntry
from visattn.metrics import captions as caption_metrics

Score = Callable[..., int]
Capsys = pytest.CaptureFixture[str]
FILE = Path(__file__).parents[2] / "metrics" / "golden_captions.json"
GOLDEN = json.loads(FILE.read_text())["sets"]["plain"]


@pytest.fixture
def score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Score:
    """Score results.json against references.txt in the working folder, with further words."""
    monkeypatch.chdir(tmp_path)
    entries = [{"image_id": name, "caption": text} for name, text in GOLDEN["captions"].items()]
    Path("results.json").write_text(json.dumps(entries))
    lines = [
        f"{name}.jpg#{number}\t{line}\n"
        for name, record in GOLDEN["references"].items()
        for number, line in enumerate(record)
    ]
    Path("references.txt").write_text("".join(lines), encoding="utf-8")

    def run(*words: str, results: str = "results.json", references: str = "references.txt") -> int:
        return main(["score", "captions", results, references, *words])

    return run


def test_scores_are_printed_as_table_and_line_and_saved(score: Score, capsys: Capsys) -> None:
    assert score("--out", "new/scores.json") == 0
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
    saved: dict[str, Any] = json.loads(Path("new/scores.json").read_text())
    assert list(saved["scores"].values()) == pytest.approx(GOLDEN["corpus"], abs=1e-12)
    assert saved["signature"] == printed.splitlines()[-1]
    assert saved["not_computed"] == {"METEOR": "not requested", "SPICE": "not requested"}
    assert output.startswith(f"visattn: {saved['warnings'][0]}\nvisattn: open ")
    assert list(saved["per_image"]["owl.jpg"].values()) == pytest.approx(
        GOLDEN["per_image"]["owl"], abs=1e-12
    )


def test_printed_rows_can_be_scored(score: Score, capsys: Capsys) -> None:
    lines = [f"{name}\t{text}\n" for name, text in reversed(GOLDEN["captions"].items())]
    Path("captions.tsv").write_text("".join([*lines, lines[3]]))
    assert score(results="captions.tsv") == 0
    printed, output = capsys.readouterr()
    assert "73.4" in printed
    assert "captions.tsv: 1 image more than once, with the same caption" in output
    Path("few.txt").write_text("a.jpg#0\ta ring\na.jpg#1\t \n")
    Path("few.tsv").write_text("a\tring\n")
    assert score(results="few.tsv", references="few.txt") == 0
    empty, one = capsys.readouterr().err.splitlines()  # each problem is one line
    assert "1 empty caption" in empty
    assert "over one image is 0" in one


def test_a_split_is_a_file_or_a_name(score: Score, capsys: Capsys) -> None:
    images = [
        {"filename": f"{name}.jpg", "split": split, "sentences": [{"raw": f"a {name}"}]}
        for name, split in (("ring", "train"), ("cross", "val"), ("star", "val"))
    ]
    Path("references.json").write_text(json.dumps({"images": images}))
    Path("captions.tsv").write_text("cross\ta cross\nstar\ta ring\n")
    Path("list.txt").write_text("star.jpg\ncross.jpg\n")
    files = {"results": "captions.tsv", "references": "references.json"}
    for split in ("val", "list.txt"):
        assert score("--split", split, **files) == 0
        assert "x 100; 2 images, 1 reference each" in capsys.readouterr().out
    assert score(**files) == 1
    assert "--split selects references (train, val)" in capsys.readouterr().err
    assert score("--split", "test", **files) == 1
    assert "test must be a split" in capsys.readouterr().err


def test_intersection_scores_the_shared_images_and_reports_the_rest(
    score: Score, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("references.txt")
    kept = [line for line in file.read_text().splitlines() if not line.startswith("owl")]
    file.write_text("\n".join(kept))
    assert score() == 1
    left = "in the results without references: 1 image (owl)"
    assert left in capsys.readouterr().err
    monkeypatch.setattr(caption_metrics, "java_score", lambda *record: "no java")
    assert score("--intersection", "--java", "--out", "scores.json") == 0
    printed, output = capsys.readouterr()
    assert "n:27" in printed
    assert "METEOR: not computed (no java)\nSPICE: not computed (no java)" in printed
    assert f"visattn: excluded, {left}\n" in output
    assert f"excluded, {left}" in json.loads(Path("scores.json").read_text())["warnings"]


def test_out_replaces_no_input_folder_or_device_and_follows_links(
    score: Score, capsys: Capsys
) -> None:
    before = Path("results.json").read_text()
    os.mkfifo("pipe")
    for place, said in (
        ("results.json", "would replace an input file"), (".", "is not a regular file"),
        ("pipe", "is not a regular file"),
    ):  # fmt: skip
        assert score("--out", place) == 1
        assert said in capsys.readouterr().err
    assert Path("results.json").read_text() == before
    assert Path("pipe").is_fifo()
    Path("link").symlink_to(Path("deeper/scores.json"))
    assert score("--out", "link") == 0
    assert Path("link").is_symlink()
    assert json.loads(Path("deeper/scores.json").read_text())["signature"]
    assert score("--out", "new/s.json", references="no.txt") == 1
    assert not Path("new").exists()


def entry(name: str, file: str = "", split: str | None = None) -> CaptionEntry:
    return CaptionEntry(name, file or name, (f"of {name}",), split)


COCO = [entry("790", "train2017/000000000790.jpg"), entry("30752", "train2017/000000030752.jpg")]
KARPATHY = [entry("COCO_val2014_000000000790.jpg", "val2014/COCO_val2014_000000000790.jpg")]
AB = [entry("a.jpg"), entry("b.jpg")]
TWO = [entry("1", "train/a.jpg"), entry("2", "test/a.jpg")]
NAMES = [  # name, entries, id of the image that is meant
    ("a.jpg", AB, "a.jpg"), ("a", AB, "a.jpg"), ("a.png", [entry("a.jpg")], "a.jpg"),
    ("photos/a.JPEG", [entry("a.jpg", "train/a.jpg")], "a.jpg"),
    ("C:\\photos\\a.jpg", [entry("a.jpg")], "a.jpg"), ("train/a.jpg", TWO, "1"),
    ("790", COCO, "790"), ("000000000790", COCO, "790"), ("000000000790.jpg", COCO, "790"),
    ("790", KARPATHY, "COCO_val2014_000000000790.jpg"), ("COCO_val2014_000000000790", COCO, "790"),
    ("a", [entry("a"), entry("b", "a.jpg")], "a"), ("v1.2", [entry("v1.2"), entry("v1.3")], "v1.2"),
    ("a", TWO, None), ("v1", [entry("v1.2")], None), ("79", COCO, None),
    ("A.jpg", [entry("a.jpg")], None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "entries", "owner"), NAMES)
def test_names_of_images(name: str, entries: list[CaptionEntry], owner: str | None) -> None:
    if owner is None:
        with pytest.raises(ValueError, match="no image of the results is in the references"):
            match_captions({name: "a ring"}, entries, intersection=True)
        return
    pairs = match_captions({name: "a ring"}, entries, intersection=True)
    assert (pairs.captions, [*pairs.references]) == ({owner: "a ring"}, [owner])


def test_images_without_a_counterpart() -> None:
    pairs = match_captions({"b": "ring", "a": "cross"}, AB)  # in the order of the references
    assert list(pairs.captions.items()) == [("a.jpg", "cross"), ("b.jpg", "ring")]
    assert pairs.notes == ()
    entries = [entry(name, split=split) for name, split in zip("abcdef", "ttvvvt", strict=True)]
    captions = {"x": "ring", "a": "ring", "y": "ring"}
    said = (
        r"in the results without references: 2 images \(x, y\); in the references without a "
        r"result: 5 images \(b, c, d, \.\.\.\); --split selects .* \(t, v\); --intersection scores"
    )
    with pytest.raises(ValueError, match=said):
        match_captions(captions, entries)
    with pytest.raises(ValueError, match=r"1 image \(x\); --intersection scores"):
        match_captions({"x": "ring", "a": "ring"}, [entry("a")])  # no split would help
    assert match_captions(captions, entries, intersection=True).notes == (
        "excluded, in the results without references: 2 images (x, y)",
        "excluded, in the references without a result: 5 images (b, c, d, ...)",
    )
    with pytest.raises(ValueError, match=r"a\.jpg and a\.png of the results are both .* a\.jpg"):
        match_captions({"a.jpg": "ring", "a.png": "cross"}, [entry("a.jpg")])
