"""Tables of the page of benchmarks: their rows, scores of runs, and what quotes them."""

import re
from pathlib import Path

import pytest
from benchmark_plots import PLOTS, digest, file_of
from result_tables import CONFIG, read, table, times, with_scores
from run_rows import quoting, renewed, runs, summary

from visattn.training.command import config_digest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "benchmarks.md").read_text()
TASKS = sorted(file.stem for file in (DOCS / "results").glob("*.csv"))


def test_the_page_shows_every_table() -> None:
    assert sorted(re.findall(r"^```\{results\} (\w+)$", PAGE, re.MULTILINE)) == TASKS


@pytest.mark.parametrize("task", TASKS)
def test_rows_say_what_was_measured_and_when(task: str) -> None:
    for row, shown in zip(read(task), table(task), strict=True):
        assert re.fullmatch(r"[0-9a-f]{8} \d{4}-\d{2}-\d{2}", with_scores(row)["measured"])
        assert "measured" not in shown
        scores = [cell for cell in row.values() if re.fullmatch(r"\w+/\w+( \* \d+)?", cell)]
        assert bool(row["measured"]) != bool(scores), f"{row}: typed, or of runs"
        assert not {*scores} & {*shown.values()}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_shows_the_rows_of_today(name: str) -> None:
    rows = digest({task: table(task) for task in PLOTS[name][1]})
    assert rows in file_of(name).read_text(), "python docs/benchmark_plots.py draws it again"
    assert f"]({file_of(name).name})" in PAGE


def test_configs_of_the_tables_exist() -> None:
    configs = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    cells = [row.get("config", "") for task in TASKS for row in read(task)]
    named = {match[1] for cell in cells if (match := CONFIG.match(cell))}
    assert len(named) > 20
    assert named <= configs


def score_row(score: str, **values: str) -> dict[str, str]:
    digest = config_digest((ROOT / "configs" / "scenes_demo.yaml").read_text())
    return {"overrides": "", "scored": "1", "settings": digest, "test/a": score, **values}


@pytest.mark.parametrize(
    ("values", "factor", "text"),
    [
        (["0.95", "0.9", "0.5", ""], 1, "0.783 ± 0.247, worst 0.500 (3 seeds)"),
        (["0.95", "0.9", "0.5"], 100, "78.3 ± 24.7, worst 50.0 (3 seeds)"),
        (["0.9997", "0.9999"], 1, "0.9998 ± 0.0001, worst 0.9997 (2 seeds)"),
        (["0.5"], 1, "0.500 (1 seed)"),
        ([""], 1, ""),
    ],
)
def test_a_score_is_a_mean_over_seeds_with_the_worst(
    values: list[str], factor: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("run_rows.read_runs", lambda _: [score_row(value) for value in values])
    assert summary("scenes_demo", "", "test/a", factor) == text


def test_the_worst_error_is_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [score_row("", **{"test/error": value}) for value in ("0.25", "0.75")]
    monkeypatch.setattr("run_rows.read_runs", lambda _: rows)
    assert summary("scenes_demo", "", "test/error") == "0.500 ± 0.354, worst 0.750 (2 seeds)"


def test_times_are_those_of_the_shortest_and_the_longest_training() -> None:
    assert times([{"wall_seconds": seconds} for seconds in ("1418", "", "700")]) == "12 to 24 min"
    assert times([{"wall_seconds": "700"}]) == "12 min"
    assert times([{"wall_seconds": ""}]) == ""


def test_quoted_scores_are_those_of_the_runs() -> None:
    texts = {file: (file.read_text(), config) for file, config in quoting().items()}
    stale = [file.name for file, (text, config) in texts.items() if renewed(text, config) != text]
    assert stale == [], "python tools/record_runs.py renews scores"


def test_runs_of_a_changed_config_count_until_there_are_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = score_row("1", settings="x")
    last = score_row("2", settings="y", scored="2")
    variant = score_row("4", settings="z", scored="3", overrides="x=1")
    new = score_row("3", scored="0")
    rows = [old, last, variant]
    monkeypatch.setattr("run_rows.read_runs", lambda _: rows)
    line = "# Runs: test/a"
    assert runs("scenes_demo") == [last]
    assert renewed(line, "scenes_demo") == f"{line} 2.000 (1 seed), config changed since"
    rows.append(new)
    assert runs("scenes_demo") == [new]
    assert renewed(line, "scenes_demo") == f"{line} 3.000 (1 seed)"
    marked = "It is <!-- runs scenes_demo test/a -->?<!-- -->."
    assert renewed(marked) == marked.replace("?", "3.000 (1 seed)")
    varied = "It is <!-- runs scenes_demo+x=1 test/a -->?<!-- -->."
    assert renewed(varied) == varied.replace("?", "4.000 (1 seed), config changed since")
    with pytest.raises(ValueError, match="no run of scenes_demo has test/b; record one"):
        renewed("# Runs: test/b 0.5", "scenes_demo")
    with pytest.raises(ValueError, match="a line begins with <!-- runs"):
        renewed(f"a\n{marked[6:]}")
