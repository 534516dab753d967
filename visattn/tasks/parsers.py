"""The parser of the training commands: errors of a few lines, with what may have been meant."""

import inspect
import re
import sys
from difflib import get_close_matches
from typing import Any, NoReturn

from lightning import Callback
from lightning.pytorch.cli import LightningArgumentParser

from visattn.models.descriptions import CLASSES
from visattn.tasks.bases import Data, Task


class Parser(LightningArgumentParser):
    """Lightning's parser, without a page of usage around each error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and what may have been meant, and leave with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)  # raises, for the parser around this one to go on
        options = [
            option
            for action in getattr(ex, "subcommand_parser", self)._actions  # noqa: SLF001
            for option in action.option_strings
        ]
        close = "".join(f"\ndid you mean {name}?" for name in _meant(message, options))
        print(f"visattn: {message}{close}", file=sys.stderr)  # noqa: T201
        self.exit(2)


def _meant(message: str, options: list[str]) -> list[str]:
    """Return the names that come closest to those that a message calls unknown."""
    classes = {kind.__name__: kind for kind in _classes()}
    words = [word for kind in classes.values() for word in inspect.signature(kind).parameters]
    found: list[str] = []
    for pattern, known in (
        (r"dot import path string: (\w+)", list(classes)),
        (r"Option '(\w+)' is not accepted", words),
        (r"unrecognized arguments: (--[\w.]+)", options),
    ):
        for given in re.findall(pattern, message):
            found += get_close_matches(given, known, n=1)
    return list(dict.fromkeys(found))


def _classes() -> list[type[Any]]:
    """Return the classes of ours that a config may name in short."""
    ours = [kind for base in (Task, Data, Callback) for kind in _below(base)]
    named = [kind for kind in ours if kind.__module__.startswith("visattn")]
    return [*CLASSES.values(), *(kind for kind in named if not inspect.isabstract(kind))]


def _below(base: type[Any]) -> list[type[Any]]:
    """Return the classes that derive from a class, at any depth."""
    return [kind for own in base.__subclasses__() for kind in (own, *_below(own))]
