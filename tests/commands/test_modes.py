"""Options that the selected mode does not use are refused by name, and `--out ''` everywhere."""

import argparse
import importlib
from collections.abc import Iterator

import pytest
from visattn.commands.options import Mode

from visattn import cli
from visattn.cli import main
from visattn.commands.caption import command as caption
from visattn.commands.overlay import command as overlay

Capsys = pytest.CaptureFixture[str]
PHOTO = ("overlay", "a.png", "--model", "m.safetensors")
SAVED = ("overlay", "a.png", "--maps", "m.npy")
CLIP = ("overlay", "a.mp4", "--model", "m.safetensors")
SAID = ("caption", "a.png", "--weights", "m.safetensors")
MAPS = ("score", "maps", "--model", "m.safetensors", "--data", "a", "--methods", "rise")

REFUSED = [
    *((PHOTO, words) for words in ("--vmin 1", "--vmax 2", "--words x", "--map-shape 7")),
    *((PHOTO, words) for words in ("--every 3", "--resize-shorter 9")),
    (PHOTO, "--style light --opacity 0.5"),
    *((SAVED, words) for words in ("--method rise", "--target 3", "--classes a.txt", "--layers 1")),
    *((SAVED, words) for words in ("--save rgba", "--explorer", "--batch-size 2", "--device cuda")),
    *((SAVED, words) for words in ("--every 3", "--box best", "--input-size 7")),
    (SAVED, "--resize-mode pad --resize-shorter 9"),
    (SAVED, "--vmax 1 --normalize image"),
    (SAVED, "--style light --colormap gray"),
    *((CLIP, words) for words in ("--normalize global", "--interpolation nearest", "--save rgba")),
    *((CLIP, words) for words in ("--autocast bfloat16", "--vmin 1", "--shard 1/2")),
    *((SAID, words) for words in ("--maps mean", "--overwrite", "--alignment")),
    (("detect", "a.png", "--weights", "m"), "--layer 0"),
    (("segment", "a.png", "--weights", "m"), "--overwrite"),
    (("ask", "a.png", "b?", "--weights", "m"), "--num-answers 3"),
    (MAPS, "--scores road --tolerance 3"),
    (MAPS, "--scores localization --steps 3"),
    (MAPS, "--overwrite"),
]


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_options_without_effect_are_named(
    command: tuple[str, ...], words: str, capsys: Capsys
) -> None:
    out = ("--out", "o") if command[0] == "overlay" else ()
    option = words.split(" --")[-1].split()[0].removeprefix("--")
    assert main([*command, *out, *words.split()]) == 2
    error = capsys.readouterr().err
    assert f"error: --{option} is for " in error or f"error: --{option} needs " in error


@pytest.mark.parametrize(
    ("parser", "modes", "everywhere"),
    [
        (overlay.build_parser(), overlay._MODES, "run files_from strict out dry_run"),
        (
            caption.build_parser(),
            caption._MODES,
            "run model files_from strict device out batch_size overwrite dry_run",
        ),
    ],
)
def test_each_option_belongs_to_a_mode_or_to_all(
    parser: argparse.ArgumentParser, modes: dict[str, Mode], everywhere: str
) -> None:
    known = {name for mode in modes.values() for name in mode.options} | {*everywhere.split()}
    options = {action.dest for action in parser._actions if action.option_strings} - {"help"}
    assert options == known


def of_output(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from of_output(inner)
        elif "--out" in action.option_strings:
            yield action


def test_an_empty_output_is_refused_by_every_command(capsys: Capsys) -> None:
    modules = {name: importlib.import_module(module) for name, (_, module) in cli.COMMANDS.items()}
    parsers = {name: m.build_parser() for name, m in modules.items() if hasattr(m, "build_parser")}
    actions = [(name, action) for name, each in parsers.items() for action in of_output(each)]
    assert len(actions) > 12
    for name, action in actions:
        with pytest.raises(argparse.ArgumentTypeError, match="must name a file or folder, got ''"):
            raise AssertionError(f"{name} accepts {action.type('')}")  # pyright: ignore[reportCallIssue, reportOptionalCall]
    assert main(["data", "scenes", "--out", ""]) == 2
    assert "argument --out: must name a file or folder, got ''" in capsys.readouterr().err
