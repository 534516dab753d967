"""Rows that outlive the run that made them."""

import json
from pathlib import Path
from typing import Any

import pytest

from visattn.commands.score.rows import ScoreRows

SETTINGS = {"model": "timm:some", "methods": ["rise"], "threshold": None}


def row(image: str, method: str = "rise", **more: Any) -> dict[str, Any]:
    return {"kind": "score", "image": image, "category": "cat", "method": method, **more}


def test_a_run_that_was_cut_off_goes_on_and_the_file_is_as_if_it_was_not(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    with ScoreRows(whole, SETTINGS) as rows:
        for name in "abc":
            rows.add(row(name, point=1.0))
    content = whole.read_bytes()
    for end in range(len(content)):
        cut.write_bytes(content[:end])
        if 0 < end <= content.index(b"\n"):
            continue
        with ScoreRows(cut, SETTINGS) as rows:
            for name in "abc":
                if not rows.known("score", name, "cat", "rise"):
                    rows.add(row(name, point=1.0))
        assert cut.read_bytes() == content
        assert rows.rows == [row(name, point=1.0) for name in "abc"]


def test_a_known_row_is_not_added_twice(tmp_path: Path) -> None:
    with ScoreRows(None, SETTINGS) as rows:
        rows.add(row("a", point=0.0))
        rows.add(row("a", point=1.0))
        rows.add(row("a", "rollout"))
    assert rows.rows == [row("a", point=0.0), row("a", "rollout")]


def test_other_settings_are_refused_unless_all_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with ScoreRows(path, SETTINGS) as rows:
        rows.add(row("a"))
    message = r"made with threshold=None, now it is threshold=0\.5; choose another --out"
    with pytest.raises(ValueError, match=message):
        ScoreRows(path, SETTINGS | {"threshold": 0.5})
    with ScoreRows(path, SETTINGS | {"threshold": 0.5}, again=True) as rows:
        assert rows.rows == []
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"settings": SETTINGS | {"threshold": 0.5}}
    ]


@pytest.mark.parametrize(
    "content", [b"no lines", b"[]\n", b"{}\n", b"{\n", b'{"settings": 1}\n{}\n']
)
def test_files_of_others_are_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no file of scores"):
        ScoreRows(path, SETTINGS)
    assert path.read_bytes() == content
