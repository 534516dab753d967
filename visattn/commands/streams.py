"""Terminal output: result rows on stdout, messages and progress on stderr.

Imports only the standard library, since `visattn.cli` uses this module.
"""

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from visattn.io.safe_text import print_message, silence, terminal_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_RAISING = ("strict", "surrogateescape")
"""Error handlers that fail on characters that the encoding lacks."""


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


def print_where(file: object) -> None:
    """Print on stderr which file to open.

    Args:
        file: A page, an image or a movie.
    """
    verb = "open in a browser:" if str(file).endswith(".html") else "open"
    print_message(f"{verb} {file}")


def prepare_streams() -> None:
    """Open closed standard streams on the null device, and make all streams encode any text.

    Otherwise the next opened file would get the descriptor of a closed stream, and libraries would
    print into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _RAISING:
            stream.reconfigure(errors="backslashreplace")


class Activity:
    """Current activity of a command, on the last line of the terminal.

    Args:
        text: What it does.
        bar: The display and its line; None shows nothing.
    """

    def __init__(self, text: str = "", bar: "tuple[Progress, TaskID] | None" = None) -> None:
        self._text = text
        self._bar = bar

    def show(self, text: str) -> None:
        """Show another text."""
        self._text = text
        self.add("")

    def add(self, note: str) -> None:
        """Show a note after the text, such as the progress of a download."""
        if self._bar is not None:
            progress, task = self._bar
            shown = terminal_text(f"{self._text}  {note}".strip())
            progress.update(task, description=shown, refresh=True)

    def advance(self) -> None:
        """Count a finished item."""
        if self._bar is not None:
            progress, task = self._bar
            progress.advance(task)


@contextmanager
def activity(text: str, total: int | None = None) -> Iterator[Activity]:
    """Show the activity of a command while the context is open, if stderr is a terminal.

    Rows and messages that are printed in the meantime appear above it.

    Args:
        text: What it does.
        total: Number of items, for a progress bar; None for no bar.

    Example:
        >>> with activity("reading", 3) as reading:
        ...     reading.advance()
    """
    if not sys.stderr.isatty():
        yield Activity(text)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
    if total is not None:
        columns += [BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f}")]
    # On stdout if that is a terminal too, since rich redraws the line below the rows it prints
    # there. The terminal wraps long lines, so that paths can be copied.
    rows_appear = sys.stdout.isatty()
    console = Console(file=sys.stdout if rows_appear else sys.stderr, soft_wrap=True)
    with (
        Progress(
            *columns, TimeElapsedColumn(), console=console, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        ) as progress,
        ExitStack() as streams,
    ):  # fmt: skip
        shown = Activity(text, (progress, progress.add_task(terminal_text(text), total=total)))
        streams.enter_context(redirect_stderr(_AboveLine(sys.stderr, console, shown)))
        if rows_appear:
            streams.enter_context(redirect_stdout(_AboveLine(sys.stdout, console, shown)))
        yield shown


class _AboveLine(io.TextIOBase):
    """A terminal stream that prints lines above the line of the activity.

    A line that is rewritten repeatedly, such as a download's progress bar, appears in that line.
    """

    def __init__(self, stream: Any, console: "Console", shown: Activity) -> None:
        self._stream = stream
        self._console = console
        self._shown = shown
        self._rest = ""

    def write(self, text: str) -> int:
        from rich.text import Text

        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line.rpartition("\r")[2]))
        if "\r" in self._rest:
            self._rest = self._rest.rpartition("\r")[2]
            self._shown.add(self._rest)
        elif lines:
            self._shown.add("")
        return len(text)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()
