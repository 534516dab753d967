"""Run the conformance suite on attention blocks, of visattn or any other library.

    python tools/check_block.py                          all blocks of visattn
    python tools/check_block.py se cbam                  blocks by name
    python tools/check_block.py timm.layers:SEModule     a class or function of another library
    python tools/check_block.py my_block.py:MyBlock --block-arg reduction=8 --checks half

A block maps features [batch, channels, height, width] to features of the same shape. MODULE:NAME is
called with the number of channels and the block arguments; MODULE is imported, which runs its code.
One block is reported check by check, several as a Markdown table. Exit codes: 0: all checks passed;
1: a check failed; 2: usage error.
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

from visattn.commands.options import CommandParser

if TYPE_CHECKING:
    from visattn.testing.block_under_test import BlockUnderTest

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Check the blocks; return 0 if all checks passed."""
    for folder in (
        str(Path.cwd()),
        str(ROOT),
    ):  # blocks of the user; a checkout need not be installed
        if folder not in sys.path:
            sys.path.insert(0, folder)
    parser = _parser()
    args = parser.parse_args(argv)
    import torch

    from visattn.testing.suite import CHECKS, format_results, format_table, run_checks

    if unknown := sorted(set(args.checks) - set(CHECKS)):
        parser.error(f"there is no check {', '.join(unknown)}; choose from {', '.join(CHECKS)}")
    try:
        blocks = _blocks_under_test(args)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    torch.set_num_threads(args.threads)
    results = {}
    for block in blocks:
        results[block.name] = run_checks(block, args.checks or CHECKS)
        if len(blocks) > 1:
            print(f"{block.name} ", end="", file=sys.stderr, flush=True)
    if len(blocks) > 1:
        print(file=sys.stderr)
    as_table = len(blocks) > 1 or args.markdown
    print(format_table(results) if as_table else format_results(results[blocks[0].name]))
    return int(not all(check.passed for row in results.values() for check in row.values()))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="check_block.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "blocks",
        nargs="*",
        metavar="BLOCK",
        help="name of a visattn block, MODULE:NAME or FILE.py:NAME",
    )
    add("--block-arg", action="append", default=[], metavar="NAME=VALUE",
        help="constructor argument, as a Python value; may be repeated. {C} is replaced by the "
        "number of channels: out_channels={C}")  # fmt: skip
    add("--channels-arg", metavar="NAME", help="parameter for the number of channels (the first)")
    add("--channels", type=int, default=32, help="channels of the features (32)")
    add("--size", type=_size, default=(11, 13), metavar="YxX",
        help="size of the features, for a block of fixed size (11x13)")  # fmt: skip
    add("--widths", type=int, nargs="+", default=(1, 4, 8, 16, 24), metavar="C",
        help="channel counts that the block must support (1 4 8 16 24)")  # fmt: skip
    add("--checks", nargs="+", default=(), metavar="CHECK", help="checks to run (all)")
    add("--markdown", action="store_true", help="print a Markdown table for a single block too")
    add("--threads", type=int, default=1, help="torch threads (1)")
    return parser


def _size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdigit() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"must be like 56x56, got {text!r}")
    return int(sides[0]), int(sides[1])


def _blocks_under_test(args: argparse.Namespace) -> "list[BlockUnderTest]":
    from visattn.blocks.registry import block_info, create_block, list_blocks
    from visattn.testing.block_under_test import BlockUnderTest

    makers: dict[str, Callable[..., Any]] = {}
    for block in args.blocks or list_blocks():
        if ":" in block:
            makers[block] = _import_object(block)
        else:
            block_info(block)  # raises an error with similar names
            makers[block] = lambda channels, block=block, **options: create_block(
                block, channels, **options
            )
    kwargs = dict(_parse_block_arg(text) for text in args.block_arg)
    blocks = []
    for name, maker in makers.items():
        build = _block_factory(maker, args.channels_arg, kwargs)
        _check_factory(name, build, args.channels)
        widths = tuple(args.widths)
        blocks.append(BlockUnderTest(name, build, args.channels, args.size, widths))
    return blocks


def _import_object(spec: str) -> Callable[..., Any]:
    """Import the class or function MODULE:NAME or FILE.py:NAME."""
    place, _, name = spec.rpartition(":")
    with _as_usage_error(f"{place} cannot be imported"):
        module = (
            _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        )
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            known = [key for key, value in vars(module).items() if inspect.isclass(value)]
            close = ", ".join(sorted(key for key in known if not key.startswith("_"))[:20])
            raise ValueError(f"{place} has no {name}; its classes: {close or 'none'}")
        target = getattr(target, part)
    if not callable(target):
        raise TypeError(f"{spec} must be a class or a function, got {type(target).__name__}")
    return target


def _import_file(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses resolve their types there
    spec.loader.exec_module(module)
    return module


def _parse_block_arg(text: str) -> tuple[str, object]:
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError(f"--block-arg must be NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value) if "{C}" not in value else value
    except (ValueError, SyntaxError):
        return name, value  # a string


def _block_factory(
    maker: Callable[..., Any], channels_arg: str | None, kwargs: dict[str, object]
) -> Callable[[int], Any]:
    def build(channels: int) -> Any:
        filled = {name: _fill_channels(value, channels) for name, value in kwargs.items()}
        if channels_arg is None:
            return maker(channels, **filled)
        return maker(**{channels_arg: channels}, **filled)

    return build


def _fill_channels(value: object, channels: int) -> object:
    if isinstance(value, str) and "{C}" in value:
        return ast.literal_eval(value.replace("{C}", str(channels)))
    return value


def _check_factory(name: str, build: Callable[[int], Any], channels: int) -> None:
    """Raise unless the factory returns a module."""
    from torch import nn

    with _as_usage_error(f"{name} cannot be created for {channels} channels"):
        block = build(channels)
    if not isinstance(block, nn.Module):
        raise TypeError(f"{name} must return a torch.nn.Module, got {type(block).__name__}")


@contextmanager
def _as_usage_error(message: str) -> Iterator[None]:
    """Report an exception in the user's code as a usage error."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(f"{message}: {type(error).__name__}: {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
