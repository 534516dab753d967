"""Tables of the page of benchmarks: files of figures, their mean over seeds, and the page."""

import re
from pathlib import Path

import pytest
from equations import block_equation
from result_tables import PLAIN, cell_text, read, result, row_runs, table
from run_rows import figure, lacks_figures, quoting, renewed, runs, times

from visattn.blocks import block_info, list_blocks
from visattn.training.cli.arguments import config_digest

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
    assert all(re.fullmatch(r"[0-9a-f]{8}(-dirty)? \d{4}-\d{2}-\d{2}", row[-1]) for row in rows), (
        rows
    )
    for row in read(task):
        assert bool(row["measured"]) != bool(row_runs(row)), f"{row}: typed, or of runs"
        results = [result(row, column) for column in row if column not in PLAIN]
        assert any(results) or "ratio of times" in row, row


def test_mean_deviation_and_seeds_of_a_cell() -> None:
    cells = [result({"a": each}, "a") for each in ("0.94 0.82 0.99", "2.42", "81.5 ± 1.7 (3)", "")]
    assert [(str(each), each.seeds) if each else None for each in cells] == [
        ("0.92 ± 0.09", 3),
        ("2.42", 1),
        ("81.5 ± 1.7", 3),
        None,
    ]


def test_cells_of_runs_show_the_worst_seed_and_how_many_reach_a_threshold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"test/accuracy": value, "test/error": value} for value in ("0.95", "0.9", "0.5", "")]
    monkeypatch.setattr("result_tables.runs", lambda *_: rows)
    shown = {}
    for cell in ("test/accuracy >= 0.9", "test/error * 100 <= 60", "test/accuracy", "test/other"):
        text = cell_text({"config": "`scenes_demo`", "a": cell}, "a")
        shown[cell] = text.replace("\N{NO-BREAK SPACE}", " ")
    assert shown == {
        "test/accuracy >= 0.9": "0.783 ± 0.247<br>worst 0.500<br>2 of 3 ≥ 0.9",
        "test/error * 100 <= 60": "78.3 ± 24.7<br>worst 95.0<br>1 of 3 ≤ 60",
        "test/accuracy": "0.783 ± 0.247<br>worst 0.500",
        "test/other": "",
    }
    assert str(figure([{"a": "0.9997"}, {"a": "0.9999"}], "a")) == "0.9998 ± 0.0001"
    seconds = [
        {"wall_seconds": "700", "cpu_seconds": "57"},
        {"wall_seconds": "1418", "cpu_seconds": ""},
    ]
    assert times(seconds) == "12 to 24 min, 57 s of CPU"


def test_quoted_figures_are_those_of_the_runs() -> None:
    texts = {file: (file.read_text(), config) for file, config in quoting().items()}
    stale = [file.name for file, (text, config) in texts.items() if renewed(text, config) != text]
    assert stale == [], "python tools/record_runs.py renews figures"
    typed = [config for text, config in texts.values() if lacks_figures(text, config)]
    assert typed == [], "a line '# Runs: SCORE' takes the place of typed figures"


def test_runs_of_a_changed_config_count_until_there_are_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = config_digest((ROOT / "configs" / "scenes_demo.yaml").read_text())
    old, last, new, other = (
        {"overrides": "", "scored": scored, "settings": settings, "a": score}
        for scored, settings, score in (
            ("1", "x", "1"),
            ("2", "y", "2"),
            ("0", digest, "3"),
            ("3", "z", "4"),
        )
    )
    rows = [old, last, {**other, "overrides": "x=1"}]
    monkeypatch.setattr("run_rows.read_runs", lambda _: rows)
    line = "# Runs: a"
    assert runs("scenes_demo") == [last]
    assert renewed(line, "scenes_demo") == "# Runs: a 2.000 (1 seed), config changed since"
    rows.append(new)
    assert runs("scenes_demo") == [new]
    assert renewed(line, "scenes_demo") == "# Runs: a 3.000 (1 seed)"
    marked = "<!-- runs scenes_demo a -->?<!-- -->"
    assert renewed(f"It is {marked}.") == f"It is {marked.replace('?', '3.000 (1 seed)')}."
    varied = "<!-- runs scenes_demo+x=1 a -->?<!-- -->"
    assert (
        renewed(f"It is {varied}.")
        == f"It is {varied.replace('?', '4.000 (1 seed), config changed since')}."
    )
    with pytest.raises(ValueError, match="no run of scenes_demo has b; record one"):
        renewed("# Runs: b 0.5", "scenes_demo")


def test_configs_of_the_tables_exist() -> None:
    configs = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    named = {
        match[1]
        for task in TASKS
        for row in read(task)
        if (match := re.match(r"`(\w+)`", row.get("config", "")))
    }
    assert len(named) > 20
    assert named <= configs


def test_equations_of_blocks_follow_their_plain_text() -> None:
    assert all(block_equation(name, block_info(name).equation) for name in list_blocks())
    with pytest.raises(ValueError, match="must have the equation of se as BlockInfo has it"):
        block_equation("se", "y = x")
