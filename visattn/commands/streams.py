"""Terminal output: result rows on stdout, messages and progress on stderr.

Imports only the standard library, since `visattn.cli` uses this module.
"""

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING

from visattn.io.safe_text import silence, terminal_text

if TYPE_CHECKING:
    from rich.progress import Progress

_RAISING = (
    "strict",
    "surrogateescape",
)  # error handlers that fail on characters the encoding lacks


def print_row(*fields: object) -> None:
    r"""Print tab-separated fields as one row; tabs within a field are escaped.

    Raises:
        BrokenPipeError: If the reader of stdout has closed it.
        OSError: If stdout cannot be written.

    Example:
        >>> print_row("dog.jpg", "a red\nball")  # doctest: +NORMALIZE_WHITESPACE
        dog.jpg a red\nball
    """
    print_lines(["\t".join(terminal_text(str(field)) for field in fields)], keep="\t")


def print_lines(lines: Iterable[str], *, keep: str = "") -> None:
    """Print lines on stdout, with control characters escaped.

    Args:
        lines: Lines without line ends.
        keep: Control characters that are kept.

    Raises:
        BrokenPipeError: If the reader of stdout has closed it.
        OSError: If stdout cannot be written.
    """
    try:
        for line in lines:
            print(terminal_text(line, keep=keep))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise OSError(f"the output could not be written: {error.strerror}") from error


def print_summaries(summaries: Mapping[str, str]) -> None:
    """Print names with summaries, one per line; long summaries end in dots.

    Args:
        summaries: Summary of each name.

    Raises:
        BrokenPipeError: If the reader of stdout has closed it.
        OSError: If stdout cannot be written.

    Example:
        >>> print_summaries({"eca": "three weights", "cbam": "two gates"})
        eca   three weights
        cbam  two gates
    """
    columns = shutil.get_terminal_size((100, 24)).columns
    width = max(map(len, summaries))
    room = max(columns - width - 2, 20)
    print_lines(
        f"{name:{width}}  {textwrap.shorten(summary, room, placeholder=' ...')}"
        for name, summary in summaries.items()
    )


def prepare_streams() -> None:
    """Open closed standard streams on the null device, and let them encode any text.

    The descriptor of a closed stream would be given to the next file that is opened, and
    libraries would print into this file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _RAISING:
            stream.reconfigure(errors="backslashreplace")


def progress_bar(count: int, *, hide_if_rows: bool = True) -> "Progress | nullcontext[None]":
    """Return a progress bar on stderr, or a null context if it would not be useful.

    Args:
        count: Number of items; fewer than two need no bar.
        hide_if_rows: Show no bar if stdout is a terminal too, on which result rows appear.
    """
    if count < 2 or not sys.stderr.isatty() or (sys.stdout.isatty() and hide_if_rows):
        return nullcontext()
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
