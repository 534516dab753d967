"""Text of strangers on a terminal: control characters are escaped.

Names of files, configs, classes and words may hold sequences that move the cursor, change the title
of the window, or hide text. All that visattn prints passes `terminal_text`.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# Control characters, surrogates, line separators and bidirectional controls.
_UNSAFE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def terminal_text(text: str, *, keep: str = "") -> str:
    r"""Return untrusted text on one line, with control characters escaped.

    Args:
        text: Such as a class name from a model file, or a caption.
        keep: Control characters that are kept, such as line breaks.

    Example:
        >>> terminal_text("a\tred\x1b[2J dog")
        'a\\tred\\x1b[2J dog'
    """
    return _UNSAFE.sub(
        lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape").decode(),
        text,
    )


def print_message(text: str) -> None:
    """Print a message on stderr, or nothing if stderr is closed.

    Args:
        text: One or several lines.
    """
    if sys.stderr is None:  # print would write to stdout
        return
    try:
        line = f"visattn: {terminal_text(text, keep=chr(10))}"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError):  # closed, or without a reader
        silence(sys.stderr)


def print_text(text: str) -> None:
    """Print lines on stdout, with control characters escaped.

    Args:
        text: One or several lines.
    """
    print(terminal_text(text, keep="\n"))  # noqa: T201


@contextmanager
def escaped_warnings() -> Iterator[None]:
    """Escape control characters in warnings that are printed meanwhile."""
    plain = warnings.formatwarning

    def escaped(*args: object, **options: object) -> str:
        return terminal_text(plain(*args, **options), keep="\n")  # type: ignore[arg-type]

    warnings.formatwarning = escaped
    try:
        yield
    finally:
        warnings.formatwarning = plain


def silence(stream: TextIO | None) -> None:
    """Redirect a stream to the null device, so that closing it raises no second error."""
    if stream is None:
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):  # a stream without a descriptor, as in a notebook
        return
