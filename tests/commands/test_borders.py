"""Borders that had no check: numbered class names, twice the same checkpoint, help of a command."""

from pathlib import Path

import pytest
import torch

import visattn as va
from visattn.cli import main
from visattn.commands.model_option import read_class_names
from visattn.commands.options import named_value
from visattn.models.resnet import AttentionResNet

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
        va.load_model(f"hf:{tmp_path}")


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "caption"]) == 0
    assert "usage: visattn caption" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "commands (visattn COMMAND --help" in capsys.readouterr().out


def test_a_failed_insertion_takes_nothing_from_the_random_state() -> None:
    model = AttentionResNet(("a", "b"), depth=8, stem_width=4, img_size=(32, 40))
    before = torch.random.get_rng_state()
    with pytest.raises(ValueError, match="there is no site for position"):
        va.insert(model, "cbam", position="no_such", example=torch.zeros(1, 3, 32, 40))
    with pytest.raises(ValueError, match="trainable must name modules|no module|no_such"):
        va.insert(
            model, "cbam", position="residual", example=torch.zeros(1, 3, 32, 40), freeze=True,
            trainable=("no_such",),
        )  # fmt: skip
    assert torch.equal(torch.random.get_rng_state(), before)
    va.insert(model, "cbam", position="residual", example=torch.zeros(1, 3, 32, 40))
    assert not torch.equal(torch.random.get_rng_state(), before)
