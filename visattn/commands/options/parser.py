"""The parser of the commands: errors of a line or two, with what may have been meant."""

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser that answers a mistake, instead of putting a page of usage before the answer.

    Example:
        >>> parser = CommandParser(prog="visattn caption")
        >>> _ = parser.add_argument("--weights")
        >>> parser.parse_args(["--wieghts", "a"])
        Traceback (most recent call last):
        SystemExit: 2
    """

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what may have been meant, and leave with code 2."""
        known = list(_options(self))
        given = re.findall(r"(?<!\S)--?[\w-]+", message) if "unrecognized" in message else []
        close = [name for one in given for name in get_close_matches(one, known, n=1)]
        hint = f"; did you mean {' '.join(dict.fromkeys(close))}?" if close else ""
        help_line = f"{self.prog} --help says what there is"
        self.exit(2, f"{self.prog}: error: {message}{hint}\n{help_line}\n")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of those below it."""
    for action in parser._actions:  # noqa: SLF001 (there is no other list of them)
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for inner in action.choices.values():
                yield from _options(inner)
