"""Examine attention blocks, ours or another library's: shapes, precision, gradients, export.

    python tools/check_block.py                          every block of visattn
    python tools/check_block.py se cbam                  some of them, by name
    python tools/check_block.py timm.layers:SEModule     another library's class or function
    python tools/check_block.py my_block.py:MyBlock --option reduction=8 --checks half gate

A block takes features [batch, channels, height, width] and gives features of the same shape; it is
made by calling MODULE:NAME with the number of channels and the options. What MODULE holds is run.
One block is told check by check, several as a Markdown table. Exit code 1: a check failed; 2: the
command line cannot be followed.
"""

import argparse
import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from visattn.testing.candidate import BlockUnderTest

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Examine what the command line names; return 0 if it passed all checks."""
    for folder in (str(Path.cwd()), str(ROOT)):  # blocks of one's own; a checkout not installed
        if folder not in sys.path:
            sys.path.insert(0, folder)
    options = _parser()
    asked = options.parse_args(argv)
    import torch

    from visattn.testing.suite import CHECKS, examine_all, listed, tabled

    if wrong := sorted(set(asked.checks) - set(CHECKS)):
        options.error(f"no check {', '.join(wrong)}; there are {', '.join(CHECKS)}")
    try:
        subjects = _subjects(asked)
    except (ValueError, TypeError) as error:
        options.error(str(error))
    torch.set_num_threads(asked.threads)
    found = {}
    for subject in subjects:
        found[subject.name] = examine_all(subject, asked.checks or CHECKS)
        if len(subjects) > 1:
            print(f"{subject.name} ", end="", file=sys.stderr, flush=True)
    if len(subjects) > 1:
        print(file=sys.stderr)
    table = tabled(found) if len(found) > 1 or asked.markdown else listed(found[subjects[0].name])
    print(table)
    return int(not all(finding.passed for row in found.values() for finding in row.values()))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="check_block.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("blocks", nargs="*", metavar="BLOCK", help="NAME of ours, MODULE:NAME or FILE.py:NAME")
    add("--option", action="append", default=[], metavar="NAME=VALUE",
        help="for the constructor, as a Python value; may be repeated. {C} stands for the "
        "channels: out_channels={C}")  # fmt: skip
    add("--by", metavar="NAME", help="the parameter that takes the channels (the first)")
    add("--channels", type=int, default=32, help="at which all but the width is examined (32)")
    add("--size", type=_size, default=(11, 13), metavar="YxX",
        help="of the features, for a block that does not take every size (11x13)")  # fmt: skip
    add("--widths", type=int, nargs="+", default=(1, 4, 8, 16, 24), metavar="C",
        help="channels at which the block must run (1 4 8 16 24)")  # fmt: skip
    add(
        "--checks", nargs="+", default=(), metavar="CHECK", help="only these; a wrong one lists all"
    )
    add("--markdown", action="store_true", help="a Markdown table for a single block too")
    add("--threads", type=int, default=1, help="of torch (1)")
    return made


def _size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdigit() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"must be like 56x56, got {text!r}")
    return int(sides[0]), int(sides[1])


def _subjects(asked: argparse.Namespace) -> "list[BlockUnderTest]":
    from visattn.blocks.registry import create, info, names
    from visattn.testing.candidate import BlockUnderTest

    makers: dict[str, Callable[..., Any]] = {}
    for block in asked.blocks or names():
        if ":" in block:
            makers[block] = _found(block)
        else:
            info(block)  # says which name may have been meant
            makers[block] = lambda channels, block=block, **options: create(
                block, channels, **options
            )
    options = dict(_option(text) for text in asked.option)
    subjects = []
    for name, maker in makers.items():
        _check_made(name, maker, asked.by, options, asked.channels)
        make = _make(maker, asked.by, options)
        subjects.append(BlockUnderTest(name, make, asked.channels, asked.size, tuple(asked.widths)))
    return subjects


def _found(spec: str) -> Callable[..., Any]:
    """Return what MODULE:NAME or FILE.py:NAME means."""
    place, _, name = spec.rpartition(":")
    with _as_mistake(f"{place} cannot be imported"):
        module = _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            known = [key for key, value in vars(module).items() if inspect.isclass(value)]
            close = ", ".join(sorted(key for key in known if not key.startswith("_"))[:20])
            raise ValueError(f"{place} has no {name}; its classes: {close or 'none'}")
        thing = getattr(thing, part)
    if not callable(thing):
        raise TypeError(f"{spec} is a {type(thing).__name__}; a class or a function is needed")
    return thing


def _of_file(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def _option(text: str) -> tuple[str, object]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError(f"--option must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value) if "{C}" not in value else value
    except (ValueError, SyntaxError):
        return name, value  # a word


def _make(
    maker: Callable[..., Any], by: str | None, options: dict[str, object]
) -> Callable[[int], Any]:
    def make(channels: int) -> Any:
        filled = {name: _filled(value, channels) for name, value in options.items()}
        return maker(channels, **filled) if by is None else maker(**{by: channels}, **filled)

    return make


def _filled(value: object, channels: int) -> object:
    if isinstance(value, str) and "{C}" in value:
        return ast.literal_eval(value.replace("{C}", str(channels)))
    return value


def _check_made(
    name: str, maker: Callable[..., Any], by: str | None, options: dict[str, object], channels: int
) -> None:
    """Raise unless the block can be called as asked and is a module of torch."""
    from torch import nn

    with _as_mistake(f"{name} cannot be made for {channels} channels"):
        made = _make(maker, by, options)(channels)
    if not isinstance(made, nn.Module):
        raise TypeError(f"{name} makes a {type(made).__name__}; a torch.nn.Module is needed")


@contextmanager
def _as_mistake(said: str) -> Iterator[None]:
    """Tell of a failure in code that the command line named as of a mistake in it."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["without a reason"])[0]
        raise ValueError(f"{said}: {type(error).__name__}: {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
