"""The options of the command line match a checked-in list."""

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from visattn import cli

FROZEN = Path(__file__).with_name("options.txt")
TRAINING = {"fit", "validate", "test"}  # without the options of Lightning


def options(word: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from options(f"{word} {name}", inner)
        elif not isinstance(action, argparse._HelpAction):
            yield f"{word} {' '.join(action.option_strings) or action.dest}"


def of_configs() -> Iterator[str]:
    """Yield the constructor arguments of the classes in configs, which are options of training."""
    from visattn.models.saving.config import model_classes
    from visattn.training.callbacks.logging import CaptionPanels, CropPanels
    from visattn.training.captioning.data import ScenesDataModule, ShardCaptionDataModule
    from visattn.training.captioning.task import CaptioningTask
    from visattn.training.classification.data import (
        FolderDataModule,
        ShardClassificationDataModule,
        TorchvisionDataModule,
    )
    from visattn.training.classification.task import ClassificationTask
    from visattn.training.detection.data import CocoDetectionDataModule, ScenesDetectionDataModule
    from visattn.training.detection.task import DetectionTask
    from visattn.training.optim import OptimConfig

    captioning = (CaptioningTask, CaptionPanels, ScenesDataModule, ShardCaptionDataModule)
    classifying = (
        ClassificationTask,
        CropPanels,
        TorchvisionDataModule,
        FolderDataModule,
        ShardClassificationDataModule,
    )
    detecting = (DetectionTask, ScenesDetectionDataModule, CocoDetectionDataModule)
    for kind in (*captioning, *classifying, *detecting, OptimConfig, *model_classes().values()):
        for name in ArgumentParser().add_class_arguments(kind, fail_untyped=False):
            yield f"{kind.__name__}.{name}"


def current() -> list[str]:
    names = [f"--{name}" for name in ("help", "version", "debug")]
    for word, (_, module) in cli.COMMANDS.items():
        if word in TRAINING:
            from visattn.training.cli.lightning_cli import OPTIONS

            names += [word, *(f"{word} --{name}" for name in OPTIONS)]
        else:
            names += options(word, importlib.import_module(module).build_parser())
    return [*names, *of_configs()]


def test_the_command_line_matches_options_txt() -> None:
    """Options are added to options.txt by hand, so that no option changes by accident."""
    assert current() == FROZEN.read_text().splitlines()


@pytest.mark.parametrize("word", sorted(set(cli.COMMANDS) - TRAINING))
def test_every_option_has_help(word: str) -> None:
    pending = [importlib.import_module(cli.COMMANDS[word][1]).build_parser()]
    while pending:
        for action in pending.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
            else:
                assert action.help


def test_commands_of_the_makefile_have_their_options() -> None:
    text = (FROZEN.parents[2] / "Makefile").read_text().replace("\\\n", " ")
    variables = dict(re.findall(r"^(\w+) := (.*)$", text, re.MULTILINE))
    commands = re.findall(r"^\t\$\(BIN\)/visattn (?!fit|test)(.*)$", text, re.MULTILINE)
    assert len(commands) == 3
    known = FROZEN.read_text().splitlines()
    for command in commands:
        words = re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], command).split()
        name = " ".join(words[:2]) if words[0] == "data" else words[0]
        options = [f"{name} {word}" for word in words if word.startswith("--")]
        assert [option for option in options if option not in known] == []
