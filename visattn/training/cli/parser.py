"""The parser of the training commands: configs are looked through, and errors are short."""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader
from lightning import Callback
from lightning.pytorch.cli import LightningArgumentParser

from visattn.io.trusted_modules import TRUSTED
from visattn.models.serialization.config import CLASSES
from visattn.training.base import DataModule, Task
from visattn.training.cli.errors import plain_error
from visattn.training.cli.yaml_safety import LONGEST, check_configs, checked_texts

_LONG = 200  # characters of a value that may be a file's content
_WIDEST = 2_000  # characters of an error
_load = get_loader("yaml")
_DENIED = r"Importing '([\w.]+)' is not allowed"
_UNKNOWN = (
    (r"dot import path string: (\w+)", "class"),
    (r"Option '([\w.]+)' is not accepted", "option"),
    (r"unrecognized arguments: (--[\w.]+)", "argument"),
)


class Parser(LightningArgumentParser):
    """Lightning's parser, without a page of usage around each error.

    No config is read before it was looked through, and no content of a file that is no config
    comes into a value or an error.
    """

    _others: Sequence[Path] = ()

    def parse_args(
        self, args: Sequence[str] | None = None, *rest: Any, **options: Any
    ) -> Namespace:  # type: ignore[override]
        """Return what a command line asks for; leave with code 2 if it cannot be followed."""
        try:
            self._others = check_configs(list(sys.argv[1:] if args is None else args))
            set_loader("yaml", _careful(self._others), (yaml.YAMLError,))
            return super().parse_args(args, *rest, **options)
        except ValueError as error:
            self.error(str(error), error)
        finally:
            set_loader("yaml", _load, (yaml.YAMLError,))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and what may have been meant, and leave with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)  # raises, for the parser around this one to go on
        options = [
            option
            for action in getattr(ex, "subcommand_parser", self)._actions  # noqa: SLF001
            for option in action.option_strings
        ]
        told = plain_error(error_text(message, options=options, others=self._others))
        print(f"visattn: {told}", file=sys.stderr)  # noqa: T201
        self.exit(2)


def error_text(message: str, *, options: Sequence[str] = (), others: Sequence[Path] = ()) -> str:
    """Return an error in our words: one line where a name is unknown, with what comes closest.

    Args:
        message: As the parser says it.
        options: Those of the command line.
        others: Files that are no configs, of which nothing may be shown.

    Example:
        >>> error_text('Parser key "encoder": Expected a dot import path string: SmalEncoder')
        'encoder: there is no class SmalEncoder; did you mean SmallEncoder?'
    """
    place = re.search(r'Parser key "([^"]+)"', message)
    key = f"{place[1]}: " if place else ""
    for file in others:
        if (line := _first_line(file)) and line in message:
            return f"{key}{_no_config(file)}"
    if denied := re.search(_DENIED, message):
        return (
            f"{key}{denied[1]} may not be imported: configs name what is in {', '.join(TRUSTED)}; "
            f"who trusts another module says so by VISATTN_TRUST_MODULES={denied[1].split('.')[0]}"
        )
    for pattern, kind in _UNKNOWN:
        if found := re.search(pattern, message):
            return f"{key}{_unknown(kind, found[1], message, options)}"
    if re.search(r"\b\w+://", message):
        message += "\nonly files of this machine are read: download it first"
    if len(message) > _WIDEST:
        message = f"{message[:_WIDEST]}\N{HORIZONTAL ELLIPSIS} ({len(message):,} characters)"
    return message


def _unknown(kind: str, given: str, message: str, options: Sequence[str]) -> str:
    """Return a sentence about a name that is not known, with those that are written alike."""
    classes = {one.__name__: one for one in _classes()}
    if kind == "class":
        said, known = f"there is no class {given}", list(classes)
    elif kind == "option":
        taker = next((name for name in classes if re.search(rf"\b{name}\b", message)), None)
        takers = [classes[taker]] if taker else list(classes.values())
        words = [word for one in takers for word in inspect.signature(one).parameters]
        said, known = f"Option '{given}' is not accepted", list(dict.fromkeys(words))
    else:
        said, known = f"unrecognized argument {given}", list(options)
    if close := get_close_matches(given, known, n=1):
        alike = [one for one in get_close_matches(given, known, n=3, cutoff=0.8) if one != close[0]]
        others = f" ({' and '.join(alike)} are written alike too)" if alike else ""
        return f"{said}; did you mean {close[0]}?{others}"
    return f"{said}; there are {', '.join(known)}" if kind == "class" else said


def _careful(others: Sequence[Path]) -> Callable[[str], Any]:
    """Return a reader of YAML that looks through it, and takes no config from certain files."""

    def read(text: str) -> Any:
        if len(text) > LONGEST:
            raise ValueError(f"a value of more than {LONGEST:,} characters is no config")
        for file in others:
            if text == _content(file):
                raise ValueError(_no_config(file))
        if len(text) > _LONG or "\n" in text:
            checked_texts(text, source="a config")
        return _load(text)

    return read


def _no_config(file: Path) -> str:
    return f"{file} is no config: name a class, or a .yaml file that describes one"


def _content(file: Path) -> str | None:
    """Return what a file holds, if it is so short that it could be taken for a config."""
    try:
        if file.stat().st_size > LONGEST:
            return None
        return file.read_text()
    except (OSError, ValueError):
        return None


def _first_line(file: Path) -> str:
    """Return the first line of a file that is long enough to be found again."""
    lines = map(str.strip, (_content(file) or "").splitlines())
    return next((line for line in lines if len(line) > 3 and not line.startswith("#")), "")


def _classes() -> list[type[Any]]:
    """Return the classes of ours that a config may name in short."""
    ours = [kind for base in (Task, DataModule, Callback) for kind in _below(base)]
    named = [kind for kind in ours if kind.__module__.startswith("visattn")]
    return [*CLASSES.values(), *(kind for kind in named if not inspect.isabstract(kind))]


def _below(base: type[Any]) -> list[type[Any]]:
    """Return the classes that derive from a class, at any depth."""
    return [kind for own in base.__subclasses__() for kind in (own, *_below(own))]
