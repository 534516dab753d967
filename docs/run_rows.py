"""Figures of trainings, computed from rows that their runs wrote (`results/runs/CONFIG.csv`).

A row holds the scores of one run (`tools/record_runs.py`). What quotes a figure is renewed from the
rows, and a test compares the two: lines in the heads of configs, and marked figures in Markdown.

    # Runs: test/accuracy_relational 0.956 ± 0.031, worst 0.928 (4 seeds)
    Accuracy: <!-- runs CONFIG test/accuracy -->0.956 ± 0.031, worst 0.928 (4 seeds)<!-- -->
    <!-- runs CONFIG+model.hop_loss_weight=0.0 test/accuracy -->...

The mark does not begin a line, which would end the paragraph there. After `+` stands a setting in
which the runs differ from the config.
"""

import csv
import math
import re
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

from visattn.training.cli.arguments import config_digest

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "results" / "runs"
ERRORS = re.compile("error|loss|perplexity")
"""Scores of which less is better."""


class Figure(NamedTuple):
    """Mean over seeds, with as many digits as are shown."""

    mean: float
    deviation: float | None
    seeds: int
    digits: int
    worst: float = math.nan
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: list[float], digits: int, *, low: bool = False) -> "Figure":
        """Return the figure of the values of seeds, of which `low` ones are better or not."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        worst = max(values) if low else min(values)
        mean = statistics.fmean(values)
        return cls(mean, deviation, len(values), digits, worst, tuple(values))

    def __str__(self) -> str:
        mean = f"{self.mean:.{self.digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{self.digits}f}"

    def sentence(self) -> str:
        """Return the figure with its worst seed and their number."""
        worst = "" if self.seeds == 1 else f", worst {self.worst:.{self.digits}f}"
        return f"{self}{worst} ({self.seeds} seed{'s' * (self.seeds > 1)})"


@cache
def read_runs(config: str) -> list[dict[str, str]]:
    """Return all rows of a config; none if no run was recorded."""
    file = RUNS / f"{config}.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


def runs(config: str, overrides: str = "") -> list[dict[str, str]]:
    """Return the rows of a config, of its settings of today; without any, of the last ones.

    With overrides these are the runs that have all of them, and otherwise those that have none.
    """
    wanted = set(overrides.split())
    rows = [
        row
        for row in read_runs(config)
        if (wanted <= set(row["overrides"].split()) if wanted else not row["overrides"])
    ]
    current = [row for row in rows if is_current(config, row)]
    last = max((row["scored"], row["settings"]) for row in rows)[1] if rows else ""
    return current or [row for row in rows if row["settings"] == last]


def is_current(config: str, row: dict[str, str]) -> bool:
    """Return whether the config has not been changed since a row was recorded."""
    text = (ROOT / "configs" / f"{config}.yaml").read_text(encoding="utf-8")
    return row["settings"] == config_digest(text)


def figure(rows: list[dict[str, str]], key: str, factor: float = 1) -> Figure | None:
    """Return the figure of a score; None if no row has it.

    It has three digits, and a fourth where the seeds differ only there; of percentages one and two.
    """
    values = [factor * float(row[key]) for row in rows if row.get(key)]
    if not values:
        return None
    spread = statistics.stdev(values) / factor if len(values) > 1 else 0
    digits = 4 if 0 < spread < 0.001 else 3
    scale = math.floor(math.log10(abs(factor)))
    return Figure.of(values, max(0, digits - scale), low=bool(ERRORS.search(key)))


def times(rows: list[dict[str, str]]) -> str:
    """Return how long the trainings took, such as `12 to 24 min, 9 to 10 min of CPU`."""
    words = []
    for column, suffix in (("wall_seconds", ""), ("cpu_seconds", " of CPU")):
        seconds = [float(row[column]) for row in rows if row[column]]
        unit, size = ("s", 1) if max(seconds, default=0) < 180 else ("min", 60)
        ends = [round(end(seconds) / size) for end in (min, max) if seconds]
        if ends:
            words.append(f"{' to '.join(map(str, dict.fromkeys(ends)))} {unit}{suffix}")
    return ", ".join(words)


def measured(rows: list[dict[str, str]]) -> str:
    """Return the commit and the date of the last run."""
    last = max(rows, key=lambda row: row["scored"])
    return f"{last['commit'].rpartition('+')[2] or 'commit unknown'} {last['scored'][:10]}"


_LINE = re.compile(r"^# Runs: (?P<key>\S+).*$", re.MULTILINE)
_MARK = re.compile(r"(<!-- runs (?P<config>\S+) (?P<key>\S+) -->)[^<]*(?=<!-- -->)")


def renewed(text: str, config: str = "") -> str:
    """Return a text with its figures as the rows have them.

    Args:
        text: Text of a config, or of a page in Markdown.
        config: Name of the config; empty for a page.

    Raises:
        ValueError: If no run of a config was recorded, none has the score, or a mark begins a line.
    """

    def sentence(name: str, key: str) -> str:
        name, _, overrides = name.partition("+")
        rows = runs(name, overrides)
        if (result := figure(rows, key)) is None:
            raise ValueError(f"no run of {name} has {key}; record one (tools/record_runs.py)")
        changed = "" if is_current(name, rows[0]) else ", config changed since"
        return f"{result.sentence()}{changed}"

    if config:
        return _LINE.sub(lambda m: f"# Runs: {m['key']} {sentence(config, m['key'])}", text)
    if "\n<!-- runs " in text:
        raise ValueError(
            "a line begins with <!-- runs, which ends its paragraph; join it to the last"
        )
    return _MARK.sub(lambda m: f"{m[1]}{sentence(m['config'], m['key'])}", text)


def lacks_figures(text: str, config: str) -> bool:
    """Return whether a config has runs with its own settings, and its head quotes none of them."""
    return bool(config and runs(config)) and not _LINE.search(text)


def quoting() -> dict[Path, str]:
    """Return the files that may quote figures, with the name of their config or an empty string."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", ROOT / "configs" / "README.md"]
    pages += sorted((*docs.glob("*.md"), *docs.glob("guides/*.md")))
    configs = {file: file.stem for file in sorted((ROOT / "configs").glob("*.yaml"))}
    return {**dict.fromkeys(pages, ""), **configs}
