"""Tables and chart of `benchmarks.md`, made from the files in `results/` when the site is built.

    ```{results} detection
    ```

A cell of a measured column holds a value for each seed (`0.942 0.939 0.943`), from which mean and
standard deviation are computed, or a published `mean ± s.d. (seeds)` where single values were not
kept. The last column is the commit that recorded a row, and its date.
"""

import csv
import html
import re
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

RESULTS = Path(__file__).resolve().parent / "results"
PLAIN = {
    "model", "config", "parameters", "data", "published", "time", "measured",
    "task", "compared with", "ratio of times", "rounds", "command",
}  # fmt: skip
"""Columns that are printed as they stand; all others hold measured values of seeds."""
SUMMARY = re.compile(r"(?P<mean>[\d.]+)(?: ± (?P<deviation>[\d.]+))? \((?P<seeds>\d+)\)")


class Measured(NamedTuple):
    """Mean over seeds, with as many digits as it was recorded with."""

    mean: float
    deviation: float | None
    seeds: int
    digits: int

    def __str__(self) -> str:
        mean = f"{self.mean:.{self.digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{self.digits}f}"


def read(task: str) -> list[dict[str, str]]:
    """Return the rows of a task."""
    with (RESULTS / f"{task}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def measured(cell: str) -> Measured | None:
    """Return mean, standard deviation and number of seeds of a cell; None if it is empty."""
    if not cell:
        return None
    if match := SUMMARY.fullmatch(cell):
        mean, deviation = match["mean"], match["deviation"]
        digits = len(mean.partition(".")[2])
        return Measured(
            float(mean), float(deviation) if deviation else None, int(match["seeds"]), digits
        )
    words = cell.split()
    values = [float(word) for word in words]
    digits = min(len(word.partition(".")[2]) for word in words)
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Measured(statistics.fmean(values), spread, len(values), digits)


def table(task: str) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of a table, results first; columns without any entry are left out."""
    rows = read(task)
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    metrics = [column for column in columns if column not in PLAIN]
    heading = [columns[0], *metrics, *(["seeds"] if metrics else [])]  # what is read first, first
    heading += ["published"] if "published" in columns else []
    heading += [name for name in columns if name not in heading and name != "measured"]
    lines = []
    for row in rows:
        line = {column: row[column] for column in heading if column in PLAIN}
        results = {column: measured(row[column]) for column in metrics}
        line |= {column: str(each or "") for column, each in results.items()}
        seeds = {each.seeds for each in results.values() if each}
        trained = seeds if row.get("config") else set()  # others are controls
        line["seeds"] = " to ".join(map(str, sorted({min(seeds), max(seeds)}))) if trained else ""
        if row.get("parameters"):
            line["parameters"] = f"{int(row['parameters']):,}"
        lines.append([line[column] for column in heading] + [row["measured"]])
    return [*heading, "commit, date"], lines


class ResultTable(SphinxDirective):
    """Directive `results TASK`: the table of a task."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_dependency(str(RESULTS / f"{self.arguments[0]}.csv"))
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
            result, number = measured(row[metric]), re.match(r"[\d.]+", row["published"])
            if result and number:
                name = row["config"].strip("`")
                if name in [each.label for each in groups.get(label, [])]:
                    name += ", another run"
                mean = round(result.mean, result.digits)
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
