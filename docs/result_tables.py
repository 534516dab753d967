"""Tables of `benchmarks.md`, made from the files in `results/` when the site is built.

    ```{results} detection
    ```

A row names a config in backticks, and the settings in which its runs differ from it (`overrides`).
A cell that names a score of these runs, such as `test/AP` or `test/error * 100`, shows it, and
time and parameters are those of the runs. All other cells are printed as they are. The column
`measured`, the commit and date of a row, stays in the file.
"""

import csv
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from run_rows import RUNS, Rows, runs, summary
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parent / "results"
SCORE = re.compile(r"(?P<key>[a-z]\w*/\w+)(?: \* (?P<factor>\d+))?")
CONFIG = re.compile(r"`(\w+)`")


def read(task: str) -> Rows:
    """Return the rows of a task, as they stand."""
    with (RESULTS / f"{task}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def table(task: str) -> Rows:
    """Return the rows of a task with the scores of runs; empty columns are left out."""
    rows = [with_scores(row) for row in read(task)]
    filled = [column for column in rows[0] if any(row[column] for row in rows)]
    shown = [column for column in filled if column not in ("overrides", "measured")]
    return [{column: row[column] for column in shown} for row in rows]


def with_scores(row: dict[str, str]) -> dict[str, str]:
    """Return a row whose scores, time, parameters, commit and date are those of its runs.

    Raises:
        ValueError: If no run was recorded.
    """
    scores = {column: score for column, cell in row.items() if (score := SCORE.fullmatch(cell))}
    overrides = row.get("overrides", "")
    result = dict(row)
    if scores:
        [config] = CONFIG.findall(row["config"])
        if not (rows := runs(config, overrides)):
            raise ValueError(f"no run of {config} {overrides} was recorded (tools/record_runs.py)")
        for column, score in scores.items():
            result[column] = summary(config, overrides, score["key"], int(score["factor"] or 1))
        last = max(rows, key=lambda row: row["scored"])
        commit = last["commit"].rpartition("+")[2] or "commit unknown"
        result |= {"time": times(rows), "measured": f"{commit} {last['scored'][:10]}"}
        result["parameters"] = last["parameters"] or row["parameters"]
    if overrides:
        result["config"] += f" `{overrides}`"
    if result.get("parameters"):
        result["parameters"] = f"{int(result['parameters']):,}"
    return result


def times(rows: Rows) -> str:
    """Return how long the trainings took, such as `12 to 24 min`."""
    minutes = sorted(float(row["wall_seconds"]) / 60 for row in rows if row["wall_seconds"])
    ends = dict.fromkeys(f"{minutes[at]:.0f}" for at in (0, -1) if minutes)
    return f"{' to '.join(ends)} min" if ends else ""


class ResultTable(SphinxDirective):
    """Directive `results TASK`: the table of a task."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        task = self.arguments[0]
        configs = {name for row in read(task) for name in CONFIG.findall(row.get("config", ""))}
        for file in (RESULTS / f"{task}.csv", *(RUNS / f"{name}.csv" for name in configs)):
            self.env.note_dependency(str(file))
        rows = table(task)
        cells = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        lines = [f"| {' | '.join(line)} |" for line in cells]
        [drawn] = self.parse_text_to_nodes("\n".join(lines))
        drawn["classes"].append("results")
        return [drawn]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("results", ResultTable)
    return {"parallel_read_safe": True}
