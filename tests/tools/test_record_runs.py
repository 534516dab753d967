"""Rows of runs: what a run wrote becomes a row, and a row of the same run is replaced."""

import csv
from pathlib import Path

import pytest

from tools import record_runs, train_seeds
from tools.record_runs import KEY, write_rows

SHORT = [
    "--trainer.max_steps=2", "--trainer.val_check_interval=2", "--trainer.log_every_n_steps=1",
    "--model.captioner.encoder.channels=8",
    "--data.num_workers=0", "--data.source.init_args.train=64", "--data.source.init_args.val=5",
    "--data.source.init_args.test=5",
]  # fmt: skip


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


def test_seeds_are_trained_once_and_become_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "rows")]
    words = ["scenes_demo", "--seeds", "3", *places, "--", *SHORT]
    assert train_seeds.main(words) == 0
    text = (tmp_path / "rows" / "scenes_demo.csv").read_text()
    [row] = rows(tmp_path / "rows" / "scenes_demo.csv")
    assert row["overrides"].split() == [
        "data.source.test=5",
        "data.source.train=64",
        "data.source.val=5",
        "model.captioner.encoder.channels=8",
        "trainer.max_steps=2",
        "trainer.val_check_interval=2",
    ]
    facts = [row[key] for key in ("seed", "split", "images", "checkpoint", "steps", "device")]
    assert facts == ["3", "test", "5", "best", "2", "cpu"]
    assert row["test/caption_accuracy"] == "0"
    assert row["wall_seconds"]
    assert str(tmp_path) not in text
    assert train_seeds.main(words) == 0
    assert " is done" in capsys.readouterr().out
    assert (tmp_path / "rows" / "scenes_demo.csv").read_text() == text


def test_a_run_without_a_test_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert record_runs.main([str(tmp_path), "--out", str(tmp_path / "rows")]) == 2
    assert "no test.json; score it with visattn test --run" in capsys.readouterr().err
    (tmp_path / "test.json").write_text("{}")
    assert record_runs.main([str(tmp_path), "--out", str(tmp_path / "rows")]) == 2
    assert "pass --config NAME" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_rows_of_the_same_key_or_test_are_replaced(tmp_path: Path) -> None:
    def row(*values: str, score: str) -> dict[str, str]:
        return {**dict(zip((*KEY, "scored"), values, strict=True)), "test/a": score}

    file = tmp_path / "rows.csv"
    write_rows(file, [row("", "11", "test", "1", score="0.5")])
    write_rows(file, [row("", "7", "test", "2", score="0.6")])
    write_rows(file, [row("", "11", "test", "3", score="0.7")])  # trained again
    write_rows(file, [row("x=1", "7", "test", "2", score="0.6")])  # compared with a new config
    kept = [(old["overrides"], old["seed"], old["test/a"]) for old in rows(file)]
    assert kept == [("", "11", "0.7"), ("x=1", "7", "0.6")]
