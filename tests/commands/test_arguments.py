"""Numeric options: each has a range, and values outside are usage errors."""

import argparse
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from visattn.cli import COMMANDS, main
from visattn.commands.options import (
    LARGEST_SEED,
    StoreOnce,
    batch_size,
    count,
    real_number,
    seed,
    whole_number,
)
from visattn.commands.output_option import output_name, output_path

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
                "NAME=VALUE" in str(action.metavar) or action.type in (output_path, output_name)
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
    """Yield the parser of every command, and those of its subcommands."""
    for name, (_, place) in COMMANDS.items():
        if "commands" in place:
            parser = importlib.import_module(place).build_parser()
            yield name, parser
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    yield from ((f"{name} {word}", inner) for word, inner in action.choices.items())


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """Return the examples at the end of a help."""
    _, _, text = parser.format_help().partition("\nexamples:\n")
    return [line.strip() for line in text.splitlines()]


def test_each_help_ends_with_examples_that_can_be_parsed() -> None:
    roots = {name: parser for name, parser in parsers() if " " not in name}
    for name, parser in parsers():
        for line in examples(parser):
            program, command, *words = shlex.split(line.partition(">")[0])
            assert program == "visattn"
            assert f"{command} {' '.join(words)} ".startswith(f"{name} ")
            roots[command].parse_args(words)


# Examples that need nothing but what comes with visattn.
SELF_CONTAINED = re.compile(r"scenes-|^visattn (demo -|data sc|data shap|models|configs|blocks)")


def test_examples_on_what_comes_with_visattn_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for _, parser in parsers() for line in examples(parser)]
    chosen = list(dict.fromkeys(line for line in lines if SELF_CONTAINED.search(line)))
    chosen.sort(key=lambda line: not line.startswith("visattn data"))  # draws for the others
    assert len(chosen) >= 13
    for line in chosen:
        words = shlex.split(re.sub(r"--(count|limit) \d+", r"--\1 2", line.partition(" >")[0]))
        assert main(words[1:]) == 0, line
        assert "Traceback" not in capsys.readouterr().err


def test_options_are_passed_once(capsys: Capsys) -> None:
    for name, parser in parsers():
        for action in parser._actions:
            takes_values = action.nargs != 0 and not isinstance(action, argparse._SubParsersAction)
            if action.option_strings and takes_values:
                assert isinstance(action, StoreOnce), (name, action.option_strings)
    overlay = "overlay a.png --out a --model timm:a "
    for words, message in (
        ("--method rise --method gradcam", "--method is passed twice: give it one list, --method"),
        ("--model-arg a=1 --model-arg b=2", "one list, --model-arg NAME=VALUE NAME=VALUE"),
        ("--model-arg a=1 a=2", "--model-arg has two values for a: give it one"),
        ("--opacity 1 --opacity 0", "--opacity is passed twice: give it one value"),
        ("--target 1 --class 2", "--target and --class are one option: pass one of them"),
        ("--meth rise", "unrecognized arguments: --meth rise; did you mean --method?"),
        ("--mean 0.5 0.4 0.3", "0.4 0.3; no option takes these words (several numbers"),
    ):
        assert main([*overlay.split(), *words.split()]) == 2
        assert message in capsys.readouterr().err
