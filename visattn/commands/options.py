"""Argument parser of the commands, the types of its values, and options of some modes only."""

import argparse
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, get_args

from visattn.commands.output_option import check_writable, output_path
from visattn.commands.streams import print_lines
from visattn.io.messages import did_you_mean
from visattn.io.safe_text import parse_json, terminal_text
from visattn.results.kinds import WordMethod

if TYPE_CHECKING:
    from torch import nn


LONGEST_SIDE = 8000  # pixels; a square of this side has as many pixels as the largest image read
LARGEST_SEED = 2**63 - 1  # accepted by the generators of both torch and NumPy
WORD_METHODS: tuple[str, ...] = get_args(WordMethod)
MODEL, TARGET, DRAWING, OUTPUT, RUN = GROUPS = (
    "model", "what to explain", "drawing", "output", "run",
)  # fmt: skip
"""Groups of options in the help of a command, in this order."""


class StoreOnce(argparse.Action):
    """Stores the values of an option, which may be passed once.

    An option with several values takes them as a list behind its name. The second of two lists
    would replace the first without a word.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the values.

        Raises:
            SystemExit: If the option, or another name of it, or a NAME=VALUE was there before.
        """
        if option_string is not None and isinstance(parser, CommandParser):
            before = parser.passed.get(self.dest)
            if before not in (None, option_string):
                parser.error(f"{before} and {option_string} are one option: pass one of them")
            if before is not None:
                name = self.metavar if isinstance(self.metavar, str) else "VALUE"
                lists = self.nargs == "+"
                advice = f"one list, {option_string} {name} {name}" if lists else "one value"
                parser.error(f"{option_string} is passed twice: give it {advice}")
            parser.passed[self.dest] = option_string
        if isinstance(values, list):
            counts = Counter(value[0] for value in values if isinstance(value, tuple))
            if repeated := [name for name, number in counts.items() if number > 1]:
                parser.error(f"{option_string} has two values for {repeated[0]}: give it one")
        setattr(namespace, self.dest, values)


class CommandParser(argparse.ArgumentParser):
    """Argument parser with short error messages and suggestions for mistyped options.

    Names of options are not abbreviated, and each option is passed once.

    Args:
        examples: Command lines at the end of the help.
        options: Of `argparse.ArgumentParser`.

    Example:
        >>> parser = CommandParser(prog="visattn caption")
        >>> _ = parser.add_argument("--weights")
        >>> parser.parse_args(["--wieghts", "a"])
        Traceback (most recent call last):
        SystemExit: 2
    """

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        self.examples = tuple(examples)
        if examples:
            lines = "\n".join(f"  {example}" for example in examples)
            options["epilog"] = "\n\n".join(
                filter(None, [options.get("epilog"), f"examples:\n{lines}"])
            )
        super().__init__(**options)
        self.register("action", None, StoreOnce)
        self.register("action", "store", StoreOnce)
        self.passed: dict[str, str] = {}
        self._groups = {title: self.add_argument_group(title) for title in GROUPS}

    def group(self, title: str) -> "argparse._ArgumentGroup":
        """Return one of `GROUPS`, to which options are added."""
        return self._groups[title]

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """Parse arguments, which `parse_args` does through this method, none of them before."""
        self.passed = {}
        return super().parse_known_args(*args, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print what the user typed without its control characters.

        Raises:
            OSError: If it cannot be written; argparse would hide that and exit with code 0.
        """
        if message and (stream := file or sys.stderr) is not None:
            stream.write(terminal_text(message, keep="\n"))

    def error(self, message: str) -> NoReturn:
        """Print the error and the closest known option, and exit with code 2."""
        known = list(_option_names(self))
        unrecognized = "unrecognized arguments" in message
        typed = re.findall(r"(?<!\S)--?[\w-]+", message) if unrecognized else []
        hints = dict.fromkeys(did_you_mean(name, known, n=1, otherwise="") for name in typed)
        if unrecognized and not typed:
            hints = ["no option takes these words (several numbers of an option: 1,2,3)"]
        hint = "".join(f"; {hint}" for hint in hints if hint)
        help_line = f"{self.prog} --help lists all options"
        self.exit(2, f"{self.prog}: error: {message}{hint}\n{help_line}\n")


def _option_names(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a parser and of its subcommands."""
    for action in parser._actions:  # noqa: SLF001 (argparse has no public list)
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for subparser in action.choices.values():
                yield from _option_names(subparser)


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """Return an argument type for integers of a closed range.

    Args:
        lowest: Smallest accepted value.
        highest: Largest accepted value.

    Raises:
        argparse.ArgumentTypeError: By the returned function, if the text is not an integer of the
            range.

    Example:
        >>> whole_number(1, 1000)("16")
        16
        >>> whole_number(1, 1000)("100000000000000000000")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a whole number from 1 to 1,000, got '1000000000000...
    """

    def parse(text: str) -> int:
        # `int` takes underscores, too, and fails for more than 4,300 digits.
        plain = re.fullmatch(r"[+-]?[0-9]{1,20}", text)
        if plain is None or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {lowest:,} to {highest:,}, got {quoted(text)}"
            )
        return int(text)

    return parse


def real_number(lowest: float, highest: float) -> Callable[[str], float]:
    """Return an argument type for finite numbers of a closed range.

    Args:
        lowest: Smallest accepted value.
        highest: Largest accepted value.

    Raises:
        argparse.ArgumentTypeError: By the returned function, if the text is not a number of the
            range.

    Example:
        >>> real_number(-10, 10)("0.7")
        0.7
        >>> real_number(-10, 10)("nan")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a number from -10 to 10, got 'nan'
    """

    def parse(text: str) -> float:
        try:
            # `float` takes 1_0, and digits of other scripts.
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(
                f"must be a number from {lowest:g} to {highest:g}, got {quoted(text)}"
            )
        return value

    return parse


# Upper bounds beyond which neither memory nor a folder is large enough.
batch_size = whole_number(1, 65_536)
count = whole_number(1, 1_000_000)
seed = whole_number(0, LARGEST_SEED)


def shard(text: str) -> tuple[int, int]:
    """Return the number of a part of the images, from 1, and of all parts: `2/4`.

    Raises:
        argparse.ArgumentTypeError: If the text has another form.

    Example:
        >>> shard("2/4")
        (2, 4)
    """
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= parts:
        raise argparse.ArgumentTypeError(
            f"must be I/N with I from 1 to N, such as 2/4; got {quoted(text)}"
        )
    return number, parts


def quoted(text: str) -> str:
    """Return typed text in quotation marks, shortened to 40 characters.

    Example:
        >>> quoted("7" * 5000)
        "'7777777777777777777777777777777777777...'"
    """
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def named_value(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE.

    A value is a number, true, false, null, a list (brackets are optional), or else a string.

    Raises:
        argparse.ArgumentTypeError: If the name is missing.

    Example:
        >>> named_value("mean=0.5,0.5"), named_value("pad_type=same")
        (('mean', [0.5, 0.5]), ('pad_type', 'same'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    for literal in (value, f"[{value}]") if "," in value else (value,):
        try:
            return name, parse_json(literal)
        except ValueError:
            continue
    return name, value


def height_width(text: str) -> tuple[int, int]:
    """Return height and width from `N` (a square) or `HEIGHTxWIDTH`.

    Raises:
        argparse.ArgumentTypeError: If the text has another form.

    Example:
        >>> height_width("32"), height_width("48x64")
        ((32, 32), (48, 64))
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(height, width) < 1 or max(height, width) > LONGEST_SIDE:
        raise argparse.ArgumentTypeError(
            f"must be N or HEIGHTxWIDTH, each from 1 to {LONGEST_SIDE:,}, got {quoted(text)}"
        )
    return height, width


_INCH = {"in": 1.0, "mm": 25.4, "px": 200.0, "": 200.0}
_NARROWEST, _WIDEST = 1.0, 40.0  # inches


def figure_width(text: str) -> float:
    """Return the width of a figure in inches, from `84mm`, `3.3in` or `1400` (pixels).

    Raises:
        argparse.ArgumentTypeError: If it is no width, or not from 1 to 40 inches.

    Example:
        >>> figure_width("1400"), round(figure_width("84mm"), 2), figure_width("3.3in")
        (7.0, 3.31, 3.3)
    """
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)(px|in|mm)?", text)
    inches = float(match[1]) / _INCH[match[2] or ""] if match else 0.0
    if not _NARROWEST <= inches <= _WIDEST:
        raise argparse.ArgumentTypeError(
            f"must be a width such as 84mm, 3.3in or 1400 (pixels, 1/200 inch), from "
            f"{_NARROWEST:g} to {_WIDEST:g} inches, got {quoted(text)}"
        )
    return inches


_EXISTING = "(default: refuse)"
_GROUP_OF = {
    "resize-mode": MODEL,
    **dict.fromkeys(("out", "overwrite"), OUTPUT),
    **dict.fromkeys(("width", "cropped"), DRAWING),
}
"""Groups of shared options; the others belong to the run."""
SHARED: Mapping[str, Mapping[str, Any]] = {
    "out": {"type": output_path, "metavar": "DIR", "help": "output folder"},
    "strict": {
        "action": "store_true", "help": "stop at the first unreadable image (default: skip)",
    },
    "device": {
        "default": "cpu", "help": "torch device: cpu, cuda, cuda:1, mps (default: cpu)",
    },
    "batch-size": {
        "type": batch_size, "default": 16, "help": "images per batch (default: 16)",
    },
    "limit": {
        "type": count, "metavar": "N", "help": "use the first N images (default: all)",
    },
    "seed": {"type": seed, "default": 0, "help": "seed of all random numbers (default: 0)"},
    "shard": {
        "type": shard, "metavar": "I/N",
        "help": "process the I-th of N parts of the images, for N commands that share the work and "
        "--out",
    },
    "overwrite": {
        "action": "store_true",
        "help": "compute and write results again that exist already (default: resume), and replace "
        "files of the same names that visattn did not write (default: refuse)",
    },
    "autocast": {
        "choices": ("bfloat16", "float16"),
        "help": "run the model in this type under torch.autocast, for GPUs and recent CPUs "
        "(default: the type of the weights)",
    },
    "resize-mode": {
        "choices": ("crop", "squash", "pad"),
        "help": "fit an image to the input size: center crop, change of aspect ratio, or padding",
    },
    "width": {
        "type": figure_width, "metavar": "W",
        "help": "width of figures, such as 84mm, 3.3in or 1400 (pixels of 1/200 inch; default: up "
        "to 7in)",
    },
    "cropped": {
        "action": "store_true",
        "help": "show only the part of each photo that the model saw (default: the whole photo, "
        "dimmed where it did not look)",
    },
    "dry-run": {
        "action": "store_true",
        "help": "check the arguments, print the files that would be written, and stop",
    },
}  # fmt: skip
"""Options of several commands: one name means the same in all of them."""
FIGURES = ("width",)
"""Options of the figures of a command."""
PHOTO_FIGURES = (*FIGURES, "cropped")
"""Options of figures whose tiles can be cropped to the part of the photo that was seen."""
BULK = ("shard", "overwrite")
"""Options of runs over many images: parts of them, and resume."""


def add_options(parser: CommandParser, *names: str, **changes: Mapping[str, Any]) -> None:
    """Add options of several commands, each to its group.

    Args:
        parser: Parser of the command.
        names: Keys of `SHARED`.
        changes: What is different in this command, such as a default, by the name of the option
            with underscores.

    Example:
        >>> parser = CommandParser(prog="visattn segment")
        >>> add_options(parser, "shard", "seed", seed={"default": 3})
        >>> parser.parse_args(["--shard", "2/4"])
        Namespace(shard=(2, 4), seed=3)
    """
    for name in names:
        parser.group(_GROUP_OF.get(name, RUN)).add_argument(
            f"--{name}", **{**SHARED[name], **changes.get(name.replace("-", "_"), {})}
        )


def add_resize_mode(parser: CommandParser, default: str | None) -> None:
    """Add `--resize-mode`; without a default the preprocessing of the model applies."""
    text = f"{SHARED['resize-mode']['help']} (default: {default or 'preprocessing of the model'})"
    add_options(parser, "resize-mode", resize_mode={"default": default, "help": text})


def add_overwrite(parser: CommandParser, files: str) -> None:
    """Add `--overwrite` for files that the command did not write.

    Args:
        parser: The parser.
        files: What is replaced, for the help.
    """
    text = f"replace {files} that exist {_EXISTING}"
    add_options(parser, "overwrite", overwrite={"help": text})


def figure_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what figures depend on, for the records of a run; nothing by default."""
    options = {"width": None, "cropped": False}
    values = {name: getattr(args, name) for name in options if name in args}
    return {name: value for name, value in values.items() if value != options[name]}


class Mode(NamedTuple):
    """A way to use a command.

    Args:
        title: Its name in messages, in the plural.
        options: Attributes of the options that it uses, besides those of all modes.
    """

    title: str
    options: Collection[str]


def refuse_unused(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    mode: str,
    modes: Mapping[str, Mode],
) -> None:
    """Exit with a usage error if an option is set that only other modes use.

    Args:
        parser: Parser of the command.
        args: Its options, as they were parsed.
        mode: Name of the selected mode.
        modes: All modes; an option that none of them lists is used by all.

    Example:
        >>> parser = argparse.ArgumentParser(prog="visattn overlay")
        >>> _ = parser.add_argument("--every", type=int, default=1)
        >>> modes = {"photo": Mode("photos", ()), "video": Mode("videos", ["every"])}
        >>> refuse_unused(parser, parser.parse_args(["--every", "3"]), "video", modes)
    """
    for name, option in _given(parser, args):
        users = [each.title for each in modes.values() if name in each.options]
        if users and name not in modes[mode].options:
            parser.error(
                f"{option} is for {' and '.join(users)}; {modes[mode].title} do not use it"
            )


def refuse_without(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    names: Collection[str],
    needed: str = "an output folder, --out DIR",
) -> None:
    """Exit with a usage error if an option is set that has no effect without another one.

    Args:
        parser: Parser of the command.
        args: Its options, as they were parsed.
        names: Attributes of the options that have no effect.
        needed: What they need.

    Example:
        >>> parser = argparse.ArgumentParser(prog="visattn caption")
        >>> _ = parser.add_argument("--alignment", action="store_true")
        >>> refuse_without(parser, parser.parse_args([]), ["alignment"])
    """
    for name, option in _given(parser, args):
        if name in names:
            parser.error(f"{option} needs {needed}")


def _given(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield attribute and name of the options that differ from their defaults."""
    # argparse does not say which options were typed: one with its default value passes.
    for action in parser._actions:  # noqa: SLF001 (argparse has no public list)
        name = action.dest
        if action.option_strings and getattr(args, name, action.default) != action.default:
            yield name, max(action.option_strings, key=len)


def print_dry_run(reads: Iterable[str], folder: Path | None, files: Sequence[str]) -> int:
    """Print a line for each input and each file that a command would write; return 0.

    Args:
        reads: Descriptions of the inputs.
        folder: Output folder; None if no files would be written to one.
        files: Names of the output files; absolute ones do not lie in the folder.

    Raises:
        OSError: If the folder cannot be written.

    Example:
        >>> print_dry_run(["2 images"], None, [])
        dry run: nothing is written
        reads   2 images
        writes  nothing without --out DIR
        0
    """
    lines = [f"reads   {line}" for line in reads]
    if folder is not None:
        check_writable(folder)
    paths = [Path(folder or "", name) for name in files]
    lines += [f"writes  {path}{' (overwrites)' * path.exists()}" for path in paths]
    if not files:
        lines.append("writes  nothing without --out DIR")
    print_lines(["dry run: nothing is written", *lines])
    return 0


def describe_model(model: "nn.Module", source: object) -> str:
    """Return source, class and number of parameters of a model.

    Args:
        model: The model.
        source: Its file or name.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{source}: {type(model).__name__}, {count:,} parameters"
