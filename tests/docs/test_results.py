"""Tables of the page of benchmarks: files of figures, their mean over seeds, and the page."""

import re
from pathlib import Path

import pytest
from equations import block_equation
from result_tables import PLAIN, measured, read, table

from visattn.blocks import block_info, list_blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "benchmarks.md").read_text()
TASKS = sorted(file.stem for file in (DOCS / "results").glob("*.csv"))


def test_the_page_is_short_and_shows_every_table() -> None:
    assert len(PAGE.splitlines()) <= 200
    assert sorted(re.findall(r"^```\{results\} (\w+)$", PAGE, re.MULTILINE)) == TASKS


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_complete_and_say_when_they_were_measured(task: str) -> None:
    heading, rows = table(task)
    assert {len(row) for row in rows} == {len(heading)}
    for row in read(task):
        assert re.fullmatch(r"[0-9a-f]{8} \d{4}-\d{2}-\d{2}", row["measured"]), row
        results = [measured(row[column]) for column in row if column not in PLAIN]
        assert any(results) or "ratio of times" in row, row


def test_mean_deviation_and_seeds_of_a_cell() -> None:
    cells = {each: measured(each) for each in ("0.94 0.82 0.99", "2.42", "81.5 ± 1.7 (3)", "")}
    assert [(str(each), each.seeds) if each else None for each in cells.values()] == [
        ("0.92 ± 0.09", 3),
        ("2.42", 1),
        ("81.5 ± 1.7", 3),
        None,
    ]


def test_configs_of_the_tables_exist() -> None:
    configs = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    named = {
        match[1]
        for task in TASKS
        for row in read(task)
        if (match := re.match(r"`(\w+)`", row.get("config", "")))
    }
    assert len(named) > 30
    assert named <= configs


def test_equations_of_blocks_follow_their_plain_text() -> None:
    assert all(block_equation(name, block_info(name).equation) for name in list_blocks())
    with pytest.raises(ValueError, match="must have the equation of se as BlockInfo has it"):
        block_equation("se", "y = x")
