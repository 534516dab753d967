"""What commands print: results as lines on stdout, remarks on stderr, whatever stands in a text.

Only the standard library is imported here, as the front door uses it.
"""

import io
import os
import re
import sys
from collections.abc import Iterable
from typing import TextIO

# Controls, halves of a character, line separators, and what turns the order of others round.
_UNSAFE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)

_RAISING = ("strict", "surrogateescape")  # ways to encode that fail where a letter is unknown


def terminal_text(text: str, *, keep: str = "") -> str:
    r"""Return a text of others as a terminal can show it: one line, and nothing that it obeys.

    Args:
        text: Such as a class name from a model's file, or a caption.
        keep: Controls that stay, such as line breaks.

    Example:
        >>> terminal_text("a\tred\x1b[2J dog")
        'a\\tred\\x1b[2J dog'
    """
    return _UNSAFE.sub(
        lambda sign: sign[0] if sign[0] in keep else sign[0].encode("unicode_escape").decode(), text
    )


def print_row(*fields: object) -> None:
    r"""Print a row of results at once: fields with tabs between them, none of which has one inside.

    Raises:
        BrokenPipeError: If whoever read the rows has left.
        OSError: If stdout cannot be written.

    Example:
        >>> print_row("dog.jpg", "a red\nball")  # doctest: +NORMALIZE_WHITESPACE
        dog.jpg a red\nball
    """
    print_lines(["\t".join(terminal_text(str(field)) for field in fields)], keep="\t")


def print_lines(lines: Iterable[str], *, keep: str = "") -> None:
    """Print lines of results.

    Args:
        lines: Without their ends.
        keep: Controls that stay in them.

    Raises:
        BrokenPipeError: If whoever read them has left.
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
        raise OSError(f"what was printed could not be written: {error.strerror}") from error


def print_remark(text: str) -> None:
    """Say something on stderr, if anybody listens there; nothing is lost if not.

    Args:
        text: One line or several.
    """
    if sys.stderr is None:  # print would put it among the results
        return
    try:
        print(f"visattn: {terminal_text(text, keep=chr(10))}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # nobody reads it, or it has been closed
        silence(sys.stderr)


def prepare_streams() -> None:
    """Make the standard streams fit to be used: all three open, and able to show any text.

    A stream that was closed from the beginning leads to nothing. Left closed, its number would go
    to the next file that is opened, and what libraries print would go into that.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _RAISING:
            stream.reconfigure(errors="backslashreplace")


def silence(stream: TextIO | None) -> None:
    """Point a stream at nothing, or Python complains once more when it closes it."""
    if stream is None:
        return
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
    except (OSError, ValueError):  # one that stands for no file, as in a notebook
        return
