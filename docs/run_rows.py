"""Scores of trainings, from the rows that their runs wrote (`results/runs/CONFIG.csv`).

A row holds the scores of one run (`tools/record_runs.py`, which also renews what quotes a score):
lines in the heads of configs, and marks in Markdown, which do not begin a line, since HTML would
end the paragraph there.

    # Runs: test/accuracy_relational 0.956 ± 0.031, worst 0.928 (4 seeds)
    Accuracy: <!-- runs CONFIG test/accuracy -->0.956 ± 0.031, worst 0.928 (4 seeds)<!-- -->
    of a variant: <!-- runs CONFIG+model.dim=64 test/accuracy --><!-- -->
"""

import csv
import math
import re
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

from visattn.training.command import config_digest

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "results" / "runs"
Rows = list[dict[str, str]]
_LESS_IS_BETTER = re.compile("error|loss|perplexity")
_LINE = re.compile(r"^(# Runs: (?P<key>\S+)).*$", re.MULTILINE)
_MARK = re.compile(r"(<!-- runs (?P<config>\S+) (?P<key>\S+) -->)[^<]*(?=<!-- -->)")


@cache
def read_runs(config: str) -> Rows:
    """Return all rows of a config; none if no run was recorded."""
    file = RUNS / f"{config}.csv"
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, strict=True))


def runs(config: str, overrides: str = "") -> Rows:
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


def summary(config: str, overrides: str, key: str, factor: float = 1) -> str:
    """Return mean, deviation, worst seed and number of seeds of a score; "" if no run has it.

    It has three digits, and a fourth where the seeds differ only there; of percentages one and two.
    """
    rows = runs(config, overrides)
    values = [factor * float(row[key]) for row in rows if row.get(key)]
    if not values:
        return ""
    spread = stdev(values) if len(values) > 1 else 0.0
    digits = max(0, (4 if 0 < spread < 0.001 * factor else 3) - round(math.log10(factor)))
    worst = max(values) if _LESS_IS_BETTER.search(key) else min(values)
    text = f"{fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {spread:.{digits}f}, worst {worst:.{digits}f}"
    changed = "" if is_current(config, rows[0]) else ", config changed since"
    return f"{text} ({len(values)} seed{'s' * (len(values) > 1)}){changed}"


def renewed(text: str, config: str = "") -> str:
    """Return the text of a config, or of a page in Markdown, with scores as the rows have them.

    Raises:
        ValueError: If no run of a config was recorded, none has the score, or a mark begins a line.
    """

    def quote(mark: re.Match[str]) -> str:
        name, _, overrides = (config or mark["config"]).partition("+")
        if score := summary(name, overrides, mark["key"]):
            return f"{mark[1]}{' ' * bool(config)}{score}"
        raise ValueError(f"no run of {name} has {mark['key']}; record one (tools/record_runs.py)")

    if "\n<!-- runs " in text:
        raise ValueError("a line begins with <!-- runs, which ends its paragraph; join the lines")
    return (_LINE if config else _MARK).sub(quote, text)


def quoting() -> dict[Path, str]:
    """Return the files that may quote scores, with the name of their config or an empty string."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", ROOT / "configs" / "README.md"]
    pages += sorted((*docs.glob("*.md"), *docs.glob("guides/*.md")))
    configs = {file: file.stem for file in sorted((ROOT / "configs").glob("*.yaml"))}
    return {**dict.fromkeys(pages, ""), **configs}
