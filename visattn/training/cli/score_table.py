"""Scores of `validate` and `test` as one table of text."""

import math
import shutil
from collections.abc import Mapping
from typing import Any

_GAP = "  "
_FIRST = ("val/", "test/")


def score_table(
    scores: Mapping[str, float], notes: Mapping[str, Any] | None = None, *, width: int | None = None
) -> str:
    """Return scores as a table: a row for each, a column for each split, its controls on the right.

    Columns that do not fit beside each other come in a table below.

    Args:
        scores: By `SPLIT/NAME`; those without a split get a column of their own.
        notes: What a task notes beside them; `SPLIT/NAME_verdict` goes into the cell.
        width: Characters of a line; those of the terminal if left out.

    Example:
        >>> print(score_table({"test/truth": 0.5, "novel/truth": 0.25, "test/images": 7.0}))
                   test   novel
        truth     0.5000  0.2500
        images       7
    """
    width = width or shutil.get_terminal_size((120, 30)).columns
    cells = {name: _cell(name, value, notes or {}) for name, value in scores.items()}
    names = sorted(scores, key=lambda name: not name.startswith(_FIRST))
    splits = dict.fromkeys(name.rpartition("/")[0] for name in names)
    rows = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    first = max(map(len, rows), default=0)
    tables: list[list[str]] = []
    room = 0
    for split in splits:
        column = [split, *(cells.get(f"{split}/{row}" if split else row, "") for row in rows)]
        wide = max(map(len, column))
        if not tables or room + len(_GAP) + wide > width:
            tables.append([f"{row:{first}}" for row in ("", *rows)])
            room = first
        room += len(_GAP) + wide
        tables[-1] = [
            f"{line}{_GAP}{cell:>{wide}}" for line, cell in zip(tables[-1], column, strict=True)
        ]
    return "\n\n".join("\n".join(map(str.rstrip, table)) for table in tables)


def _cell(name: str, value: float, notes: Mapping[str, Any]) -> str:
    verdict = notes.get(f"{name}_verdict", "")
    if not math.isfinite(value):
        text = "-"
    else:
        text = f"{value:,.0f}" if value == int(value) and abs(value) > 1 else f"{value:.4f}"
    return f"{text} ({verdict})" if verdict and verdict != "above chance" else text
