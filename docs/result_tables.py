"""Tables and chart of `benchmarks.md`, made from the files in `results/` when the site is built.

    ```{results} detection
    ```

A row names a config, and the settings in which its runs differ from it (`overrides`). A cell of a
measured column names a score of these runs (`run_rows.py`): `test/error * 100`, or with a threshold
`test/accuracy >= 0.9`, of which the share of seeds that reach it is shown. Time, parameters, commit
and date come from the runs, too.

Rows without runs, which are older, were typed: a cell holds a value for each seed (`0.942 0.939
0.943`) or `mean ± s.d. (seeds)`, and the last column the commit that recorded it, and its date.
"""

import csv
import html
import re
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from run_rows import RUNS, Figure, figure, is_current, measured, runs, times
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parent / "results"
PLAIN = {
    "model", "config", "overrides", "parameters", "data", "published", "time", "measured",
    "task", "compared with", "ratio of times", "rounds", "command",
    "map", "network", "first, s", "later, s", "MB", "difference",
}  # fmt: skip
"""Columns that are printed as they stand; all others hold measured values of seeds."""
SUMMARY = re.compile(r"(?P<mean>[\d.]+)(?: ± (?P<deviation>[\d.]+))? \((?P<seeds>\d+)\)")
SCORE = re.compile(
    r"(?P<key>[a-z]\w*/\w+)(?: \* (?P<factor>\d+))?(?: (?P<sign>>=|<=) (?P<limit>[\d.]+))?"
)
CONFIG = re.compile(r"`(\w+)`")


def read(task: str) -> list[dict[str, str]]:
    """Return the rows of a task."""
    with (RESULTS / f"{task}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def row_runs(row: dict[str, str]) -> list[dict[str, str]]:
    """Return the runs of a row; none if it was typed."""
    if not any(SCORE.fullmatch(cell) for cell in row.values()):
        return []
    if not (found := CONFIG.fullmatch(row["config"])):
        raise ValueError(f"a row of scores needs a config, got {row['config']!r}")
    overrides = row.get("overrides", "")
    if not (rows := runs(found[1], overrides)):
        raise ValueError(f"no run of {found[1]} {overrides} was recorded (tools/record_runs.py)")
    return rows


def result(row: dict[str, str], column: str) -> Figure | None:
    """Return the figure of a cell; None if it is empty."""
    cell = row[column]
    if not cell:
        return None
    if score := SCORE.fullmatch(cell):
        return figure(row_runs(row), score["key"], int(score["factor"] or 1))
    if match := SUMMARY.fullmatch(cell):
        mean, deviation = match["mean"], match["deviation"]
        digits = len(mean.partition(".")[2])
        return Figure(
            float(mean), float(deviation) if deviation else None, int(match["seeds"]), digits
        )
    words = cell.split()
    digits = min(len(word.partition(".")[2]) for word in words)
    return Figure.of([float(word) for word in words], digits)


def cell_text(row: dict[str, str], column: str) -> str:
    """Return what a measured cell shows: mean and deviation, of runs also the worst and a share."""
    figure = result(row, column)
    score = SCORE.fullmatch(row[column])
    if figure is None or not score or figure.seeds == 1:
        return str(figure or "").replace(" ", "\N{NO-BREAK SPACE}")
    lines = [str(figure), f"worst {figure.worst:.{figure.digits}f}"]
    if score["limit"]:
        limit, values = float(score["limit"]), figure.values
        reached = sum(
            value >= limit if score["sign"] == ">=" else value <= limit for value in values
        )
        sign = "≥" if score["sign"] == ">=" else "≤"
        lines.append(f"{reached} of {figure.seeds} {sign} {score['limit']}")
    return "<br>".join(lines).replace(" ", "\N{NO-BREAK SPACE}")


def table(task: str) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of a table, results first; columns without any entry are left out."""
    rows = read(task)
    for row in rows:
        row.update(_facts(row_runs(row)))
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    metrics = [column for column in columns if column not in PLAIN]
    heading = [columns[0], *metrics, *(["seeds"] if metrics else [])]  # what is read first, first
    heading += ["published"] if "published" in columns else []
    hidden = {*heading, "measured", "overrides"}
    heading += [name for name in columns if name not in hidden]
    return [*heading, "commit, date"], [_line(row, heading, metrics) for row in rows]


def _facts(runs: list[dict[str, str]]) -> dict[str, str]:
    """Return what the runs of a row say of themselves."""
    if not runs:
        return {}
    parameters = {"parameters": runs[-1]["parameters"]} if runs[-1]["parameters"] else {}
    return {**parameters, "time": times(runs), "measured": measured(runs)}


def _line(row: dict[str, str], heading: list[str], metrics: list[str]) -> list[str]:
    """Return a row of a table."""
    line = {column: row[column] for column in heading if column in PLAIN}
    line |= {column: cell_text(row, column) for column in metrics}
    seeds = {each.seeds for column in metrics if (each := result(row, column))}
    own = row_runs(row)
    trained = seeds if row.get("config") else set()  # others are controls
    line["seeds"] = " to ".join(map(str, sorted({min(seeds), max(seeds)}))) if trained else ""
    if metrics and not own:
        line["seeds"] = f"{line['seeds']}, typed".removeprefix(", ")
    elif own and not is_current(CONFIG.findall(row["config"])[0], own[0]):
        line["seeds"] += ", config changed since"
    if row.get("overrides"):
        line["config"] += f" `{row['overrides']}`"
    if row.get("parameters"):
        line["parameters"] = f"{int(row['parameters']):,}"
    return [*(line[column] for column in heading), row["measured"]]


class ResultTable(SphinxDirective):
    """Directive `results TASK`: the table of a task."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_dependency(str(RESULTS / f"{self.arguments[0]}.csv"))
        for row in read(self.arguments[0]):
            for config in CONFIG.findall(row.get("config", "")):
                self.env.note_dependency(str(RUNS / f"{config}.csv"))
        heading, rows = table(self.arguments[0])
        lines = ["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        [drawn] = self.parse_text_to_nodes("\n".join(lines))
        drawn["classes"].append("results")
        return [drawn]


# ---------------------------------------------------------------- the chart


class Compared(NamedTuple):
    """A measured value beside a published one."""

    label: str
    value: float
    published: float


def comparisons() -> dict[str, list[Compared]]:
    """Return the rows that have a published figure, by metric."""
    groups: dict[str, list[Compared]] = {}
    for task, metric, label in (
        ("glimpses", "error, %", "error, %: lower is better"),
        ("captions_photos", "BLEU-4", "BLEU-4 on Flickr8k: higher is better"),
    ):
        for row in read(task):
            mine, number = result(row, metric), re.match(r"[\d.]+", row["published"])
            if mine and number:
                name = row["config"].strip("`")
                if name in [each.label for each in groups.get(label, [])]:
                    name += ", another run"
                mean = round(mine.mean, mine.digits)
                groups.setdefault(label, []).append(Compared(name, mean, float(number[0])))
    return groups


LEFT, WIDTH, ROW = 250, 720, 30


def chart() -> str:
    """Return the chart as SVG: measured values as dots, published ones as rings."""
    parts: list[str] = []
    y = 34
    for title, rows in comparisons().items():
        limit = max(max(row.value, row.published) for row in rows) * 1.1
        parts.append(_text(0, y, title, weight=600))
        for row in rows:
            y += ROW
            mine, theirs = (
                LEFT + value / limit * (WIDTH - LEFT - 20) for value in (row.value, row.published)
            )
            parts.append(_text(LEFT - 16, y + 5, row.label, anchor="end"))
            parts.append(f'<path d="M{LEFT} {y}H{WIDTH}" stroke="currentColor" opacity=".15"/>')
            parts.append(
                f'<path d="M{mine:.1f} {y}H{theirs:.1f}" stroke="currentColor" opacity=".5"/>'
                f'<circle cx="{theirs:.1f}" cy="{y}" r="6" class="published"/>'
                f'<circle cx="{mine:.1f}" cy="{y}" r="6" class="ours"/>'
            )
            left, right = sorted(((mine, row.value), (theirs, row.published)))
            parts.append(_text(left[0] - 11, y + 5, f"{left[1]:.3g}", anchor="end", size=13))
            parts.append(_text(right[0] + 11, y + 5, f"{right[1]:.3g}", size=13))
        y += ROW + 22
    legend = (
        f'<circle cx="{LEFT + 6}" cy="10" r="6" class="ours"/>{_text(LEFT + 20, 15, "visattn")}'
        f'<circle cx="{LEFT + 106}" cy="10" r="6" class="published"/>'
        f"{_text(LEFT + 120, 15, 'the paper of the method')}"
    )
    return (
        f'<div class="chart"><svg role="img" viewBox="0 0 {WIDTH + 30} {y - 20}" '
        'aria-label="Measured and published figures, as in the tables below">'
        f"{legend}{''.join(parts)}</svg></div>"
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 15, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="currentColor">{html.escape(text)}</text>'
    )


class ResultChart(SphinxDirective):
    """Directive `results-chart`: all figures that have a published counterpart."""

    def run(self) -> list[nodes.Node]:
        """Return the chart, for HTML."""
        return [nodes.raw("", chart(), format="html")]


def setup(app: Any) -> dict[str, bool]:
    """Add the directives."""
    app.add_directive("results", ResultTable)
    app.add_directive("results-chart", ResultChart)
    return {"parallel_read_safe": True}
