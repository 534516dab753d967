"""Options that a command uses in some of its modes only: given in another one, they are refused."""

import argparse
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple


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
        >>> _ = parser.add_argument("--gif", action="store_true")
        >>> refuse_without(parser, parser.parse_args([]), ["gif"])
    """
    for name, option in _given(parser, args):
        if name in names:
            parser.error(f"{option} needs {needed}")


def _given(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield attribute and name of the options that differ from their defaults."""
    for action in parser._actions:  # noqa: SLF001 (argparse has no public list)
        name = action.dest
        if action.option_strings and getattr(args, name, action.default) != action.default:
            yield name, max(action.option_strings, key=len)
