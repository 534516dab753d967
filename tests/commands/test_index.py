"""The index of an output folder: cards and rows of all records, those of other commands too."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from index_cards import parse_index_page

from visattn.commands import index
from visattn.commands.index import card_image, write_index
from visattn.commands.records import Origin, Part, ResultFolder
from visattn.results.cards import Card

CARD = card_image(np.zeros((11, 13, 3), np.uint8))
JOB: Any = SimpleNamespace(
    command="caption",
    title="Captions",
    has_index=True,
    seen_share=lambda _record: 0.5,
    table=lambda record: [record["row"]],
)


def add(folder: Path, name: str, command: str = "caption", end: str = ".html") -> None:
    """Write the result of a photo."""
    card = Card(name, f"{name}{end}", f"a {name}", CARD)
    part = Part(f"{name}{end[:-5]}", {"row": {"name": name}}, {card.page: b""}, card)
    with ResultFolder(folder) as results:
        results.write(part, Origin(command, f"{name}.jpg", {}, {}))


def listed(folder: Path) -> list[str]:
    return [card.name for card in parse_index_page((folder / "index.html").read_text())]


def test_pages_and_table_hold_all_records_in_natural_order(tmp_path: Path) -> None:
    for name in ("photo10", "photo9", "sub/a"):
        add(tmp_path, name)
    add(tmp_path, "other", "detect")
    (tmp_path / "notes.json").write_text("{}")
    write_index(tmp_path, JOB)
    assert listed(tmp_path) == ["other", "photo9", "photo10", "sub/a"]
    rows = (tmp_path / "caption.csv").read_text().splitlines()
    assert rows[0] == "image,name,seen_share,files"
    assert [row.split(",")[1] for row in rows[1:]] == ["photo9", "photo10", "sub/a"]


def test_an_empty_folder_gets_neither(tmp_path: Path) -> None:
    write_index(tmp_path, JOB)
    assert list(tmp_path.iterdir()) == []


def test_removed_and_unfinished_results_have_no_card(tmp_path: Path) -> None:
    for name in "abc":
        add(tmp_path, name)
    (tmp_path / "a.html").unlink()
    record = json.loads((tmp_path / "b.json").read_text())
    record["provenance"]["settings"] = None  # as a killed run leaves it
    (tmp_path / "b.json").write_text(json.dumps(record))
    write_index(tmp_path, JOB)
    assert listed(tmp_path) == ["c"]
    assert len((tmp_path / "caption.csv").read_text().splitlines()) == 3


def test_an_image_has_the_card_that_shows_most(tmp_path: Path) -> None:
    add(tmp_path, "a", end=".methods.png")
    add(tmp_path, "a")
    write_index(tmp_path, JOB)
    [card] = parse_index_page((tmp_path / "index.html").read_text())
    assert card.page == "a.html"


def test_long_pages_have_no_further_thumbnails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST_THUMBNAILS", 2)
    for name in "abc":
        add(tmp_path, name)
    write_index(tmp_path, JOB)
    cards = parse_index_page((tmp_path / "index.html").read_text())
    assert [bool(card.thumbnail) for card in cards] == [True, True, False]
