"""What `visattn doctor` found: one fact each, how it stands, and what would help."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "amiss", "broken"]
_COLORS: dict[State, str] = {"ok": "32", "note": "36", "amiss": "33", "broken": "31;1"}
_MARK = 6  # letters of the longest state
_NAME = 14  # of the longest name


@dataclass(frozen=True)
class Notice:
    """One fact about this machine.

    Args:
        part: The heading below which it stands.
        name: What it is about.
        state: `ok`; `note`, worth knowing; `amiss`, some of the toolkit is not usable or is slow;
            `broken`, what all of it needs is not there.
        told: The fact.
        remedy: What to type or do about it.
    """

    part: str
    name: str
    state: State
    told: str
    remedy: str = ""


def notice_lines(
    notices: Sequence[Notice], columns: int, *, colored: bool = False
) -> Iterator[str]:
    """Yield notices as lines, under the headings of their parts.

    Args:
        notices: Those of a part stand together.
        columns: Of the terminal.
        colored: Whether states may have colors.

    Example:
        >>> list(notice_lines([Notice("disk", "runs/", "ok", "can be written")], 80))
        ['disk', '  ok      runs/           can be written']
    """
    part = ""
    for one in notices:
        if one.part != part:
            if part:
                yield ""
            part = one.part
            yield _painted(part, "1") if colored else part
        mark = f"{one.state:{_MARK}}"
        mark = _painted(mark, _COLORS[one.state]) if colored else mark
        margin = " " * (2 + _MARK + 2 + _NAME + 2)
        told = _wrapped(one.told, columns - len(margin)) or [""]
        yield f"  {mark}  {one.name:{_NAME}}  {told[0]}".rstrip()
        yield from (margin + line for line in told[1:])
        for line in one.remedy.splitlines():
            yield from (margin + part for part in _remedied(line, columns - len(margin)))


def terminal_colors() -> bool:
    """Whether stdout is a terminal that shows colors, and nobody asked it not to."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()


def _remedied(line: str, width: int) -> list[str]:
    """Return a remedy; a command, which begins with two spaces, stays in one piece to be copied."""
    return [line] if line.startswith("  ") else _wrapped(line, width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _painted(text: str, color: str) -> str:
    return f"\033[{color}m{text}\033[0m"
