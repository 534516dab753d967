"""Checks of the trainer's options, and the table of the scores."""

import math
import shutil
from collections.abc import Mapping
from typing import Any

_GAP = "  "
_MAIN_SPLITS = ("val/", "test/")


def score_table(
    scores: Mapping[str, float], notes: Mapping[str, Any] | None = None, *, width: int | None = None
) -> str:
    """Return a table with a row for each score and a column for each split.

    The validation or test split comes first, its controls follow. Columns that exceed the width
    continue in a table below. Scores without a split get a column of their own.

    Args:
        scores: Values by `SPLIT/NAME`.
        notes: Notes of the task; `SPLIT/NAME_verdict` is printed after the value.
        width: Characters per line; by default those of the terminal.

    Example:
        >>> scores = {"test/caption_accuracy": 0.5, "novel/caption_accuracy": 0.25}
        >>> print(score_table({**scores, "test/images": 7.0}))
                            test   novel
        caption_accuracy  0.5000  0.2500
        images                 7
    """
    width = width or shutil.get_terminal_size((120, 30)).columns
    cells = {name: _format_cell(name, value, notes or {}) for name, value in scores.items()}
    names = sorted(scores, key=lambda name: not name.startswith(_MAIN_SPLITS))
    splits = dict.fromkeys(name.rpartition("/")[0] for name in names)
    rows = list(dict.fromkeys(name.rpartition("/")[2] for name in names))
    label_width = max(map(len, rows), default=0)
    tables: list[list[str]] = []
    table_width = 0
    for split in splits:
        column = [split, *(cells.get(f"{split}/{row}" if split else row, "") for row in rows)]
        column_width = max(map(len, column))
        if not tables or table_width + len(_GAP) + column_width > width:
            tables.append([f"{row:{label_width}}" for row in ("", *rows)])
            table_width = label_width
        table_width += len(_GAP) + column_width
        tables[-1] = [
            f"{line}{_GAP}{cell:>{column_width}}"
            for line, cell in zip(tables[-1], column, strict=True)
        ]
    return "\n\n".join("\n".join(map(str.rstrip, table)) for table in tables)


def _format_cell(name: str, value: float, notes: Mapping[str, Any]) -> str:
    verdict = notes.get(f"{name}_verdict", "")
    if not math.isfinite(value):
        text = "-"
    else:
        text = f"{value:,.0f}" if value == int(value) and abs(value) > 1 else f"{value:.4f}"
    return f"{text} ({verdict})" if verdict and verdict != "above chance" else text


_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
_SHORT_PRECISIONS = {"None", "32", "16", "bf16"}  # as Lightning abbreviates them


def check_trainer(options: Any) -> None:
    """Refuse precisions and strategies that change or split the weights of a model.

    Example:
        >>> from types import SimpleNamespace
        >>> check_trainer(SimpleNamespace(precision="bf16-true", strategy="auto"))
        Traceback (most recent call last):
        ValueError: trainer.precision must be 32-true, 16-mixed or bf16-mixed, got bf16-true: ...
    """
    precision = str(options.precision)
    if precision not in {*_PRECISIONS, *_SHORT_PRECISIONS}:
        *first, last = _PRECISIONS
        raise ValueError(
            f"trainer.precision must be {', '.join(first)} or {last}, got {precision}: the weights "
            "of visattn models stay in float32"
        )
    name = str(getattr(options.strategy, "class_path", options.strategy))
    words = name.lower().replace("_", "")
    if any(sharded in words for sharded in ("fsdp", "deepspeed", "modelparallel")):
        raise ValueError(
            f"trainer.strategy must be ddp to train in several processes, got {name}: its "
            "checkpoints, averages and gradients are not those of one process"
        )
