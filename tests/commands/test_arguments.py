"""Numeric options: each has a range, and values outside are usage errors."""

import argparse
import importlib
import shlex
from collections.abc import Iterator

import pytest

from visattn.cli import COMMANDS, main
from visattn.commands.options import (
    LARGEST_SEED,
    SHARED,
    batch_size,
    count,
    real_number,
    seed,
    whole_number,
)

Capsys = pytest.CaptureFixture[str]
INVALID_NUMBERS = (
    "nan", "inf", "-1e999", "1e308", "-1e308", "1" + 20 * "0", "-1" + 20 * "0", 5000 * "9",
    "0x10", "1_0", "\N{ARABIC-INDIC DIGIT THREE}", "", " ", "two", "1.5.5", "99999999x99999999",
)  # fmt: skip


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options(inner)


def test_every_numeric_option_has_a_range() -> None:
    modules = {name: place for name, (_, place) in COMMANDS.items() if "commands" in place}
    counted = 0
    for name, place in modules.items():
        for action in options(importlib.import_module(place).build_parser()):
            assert action.type not in (int, float), (name, action.option_strings)
            module = getattr(action.type, "__module__", "")
            if not module.endswith(("commands.options", "commands.model_option")) or (
                "NAME=VALUE" in str(action.metavar) or action.dest == "out"
            ):
                continue
            counted += 1
            for text in INVALID_NUMBERS:
                with pytest.raises(argparse.ArgumentTypeError, match="must be") as caught:
                    action.type(text)  # type: ignore[operator]
                assert len(str(caught.value)) < 140
    assert counted >= 30


def test_ranges_are_closed() -> None:
    assert whole_number(-3, 3)("-3") == -3
    assert real_number(-0.5, 3)("3.0") == 3.0
    assert [batch_size("1"), count("1000000"), seed(str(LARGEST_SEED))] == [
        1,
        1_000_000,
        LARGEST_SEED,
    ]
    with pytest.raises(argparse.ArgumentTypeError, match="from -3 to 3, got '4'"):
        whole_number(-3, 3)("4")


def test_a_number_out_of_its_range_is_a_usage_error(capsys: Capsys) -> None:
    for command, message in (
        (
            "caption a.png --run a --beam-size 100000000000000000000",
            "from 1 to 1,000, got '1000000",
        ),
        ("caption a.png --run a --length-penalty 1e308", "from -10 to 10, got '1e308'"),
        ("caption a.png --run a --length-penalty nan", "from -10 to 10, got 'nan'"),
        ("overlay a.png --out a --model a --opacity 7", "a number from 0 to 1, got '7'"),
        ("data scenes --out a --size 100000", "from 16 to 4,096, got '100000'"),
        ("data scenes --out a --count 100000000000 --dry-run", "from 1 to 1,000,000, got '1000"),
    ):
        assert main(command.split()) == 2
        assert message in capsys.readouterr().err


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the parser of every command, and those of the subcommands of score."""
    for name, (_, place) in COMMANDS.items():
        if "commands" in place:
            yield name, importlib.import_module(place).build_parser()
    for name in ("captions", "maps", "words"):
        module = importlib.import_module(f"visattn.commands.score.{name}")
        yield f"score {name}", module.build_parser()


def test_the_examples_of_each_help_can_be_parsed() -> None:
    for name, parser in parsers():
        if name == "score":
            continue
        examples = getattr(parser, "examples", ())
        assert examples, name
        assert "examples:\n  visattn " in parser.format_help()
        for example in examples:
            program, *words = shlex.split(example)
            assert program == "visattn"
            assert " ".join(words).startswith(name)
            parser.parse_args(words[len(name.split()) :])


def test_shared_options_have_the_same_type_everywhere() -> None:
    for name, parser in parsers():
        for option, settings in SHARED.items():
            for action in parser._actions:
                own = name in ("export", "demo") or option == "seed"  # files; samplers of 32 bits
                if f"--{option}" in action.option_strings and not own:
                    assert action.type == settings.get("type"), (name, option)
