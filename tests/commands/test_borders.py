"""Borders that had no check: numbered class names, twice the same checkpoint, help of a command."""

from pathlib import Path

import pytest

import visattn as va
from visattn.cli import main
from visattn.commands.model_option import read_class_names
from visattn.commands.options import named_value

DEEP = "[" * 100_000


@pytest.mark.parametrize("text", ["0,a\n1,b\n", "1 a\n2 b\n", "0: a\n1: b\n", "0\tcat\n7\tdog\n"])
def test_numbers_before_class_names_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match="has a number before each name"):
        read_class_names(tmp_path / "classes.txt")


@pytest.mark.parametrize("text", ["cat\ndog\n", "0\n1\n", "0 - zero\n1 - one\n", "3d\ncat\n"])
def test_other_class_names_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text(text)
    assert read_class_names(tmp_path / "classes.txt") == text.splitlines()


def test_deep_json_is_refused_everywhere(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_class_names(tmp_path / "classes.json")
    assert named_value(f"a={DEEP}") == ("a", DEEP)
    (tmp_path / "config.json").write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        va.load(f"hf:{tmp_path}")


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "caption"]) == 0
    assert "usage: visattn caption" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "commands (visattn COMMAND --help" in capsys.readouterr().out
