"""Rows of scores that are kept between runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from visattn.commands.score.rows import ScoreRows

SETTINGS = {"model": "timm:some", "methods": ["rise"], "threshold": None}
CONTENTS = dict.fromkeys("abc", "digest")


def row(image: str, method: str = "rise", **more: Any) -> dict[str, Any]:
    return {"kind": "score", "image": image, "category": "cat", "method": method, **more}


def test_a_resumed_run_writes_the_same_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    with ScoreRows(whole, SETTINGS, CONTENTS) as rows:
        for name in "abc":
            rows.add(row(name, point=1.0))
    content = whole.read_bytes()
    for end in range(len(content)):
        cut.write_bytes(content[:end])
        if 0 < end <= content.index(b"\n"):
            continue
        with ScoreRows(cut, SETTINGS, CONTENTS) as rows:
            for name in "abc":
                if not rows.has("score", name, "cat", "rise"):
                    rows.add(row(name, point=1.0))
        assert cut.read_bytes() == content
        assert rows.rows == [row(name, point=1.0) for name in "abc"]


def test_an_existing_row_is_not_added_twice(tmp_path: Path) -> None:
    with ScoreRows(None, SETTINGS, CONTENTS) as rows:
        rows.add(row("a", point=0.0))
        rows.add(row("a", point=1.0))
        rows.add(row("a", "rollout"))
    assert rows.rows == [row("a", point=0.0), row("a", "rollout")]


def test_changed_settings_are_refused_without_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with ScoreRows(path, SETTINGS, CONTENTS) as rows:
        rows.add(row("a"))
    message = r"made with threshold=None, now it is threshold=0\.5; choose another --out"
    with pytest.raises(ValueError, match=message):
        ScoreRows(path, SETTINGS | {"threshold": 0.5}, CONTENTS)
    with ScoreRows(path, SETTINGS | {"threshold": 0.5}, CONTENTS, overwrite=True) as rows:
        assert rows.rows == []
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"settings": SETTINGS | {"threshold": 0.5}}
    ]


@pytest.mark.parametrize(
    "content", [b"no lines", b"[]\n", b"{}\n", b"{\n", b'{"settings": 1}\n{}\n']
)
def test_foreign_files_are_not_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a score file"):
        ScoreRows(path, SETTINGS, CONTENTS)
    assert path.read_bytes() == content


def test_rows_of_changed_or_other_images_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with ScoreRows(path, SETTINGS, CONTENTS) as rows:
        for name in "abc":
            rows.add(row(name, point=1.0))
    with ScoreRows(path, SETTINGS, {"a": "digest", "b": "another"}) as rows:
        assert rows.rows == [row("a", point=1.0)]
        rows.add(row("b", point=0.0))
    with ScoreRows(path, SETTINGS, CONTENTS) as rows:  # those of before are not lost
        assert rows.rows == [row(name, point=1.0) for name in "abc"]
