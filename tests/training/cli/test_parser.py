"""Parser errors show no traceback, and configs import trusted modules only."""

import sys
from argparse import ArgumentError
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from visattn.cli import main
from visattn.io.trusted_modules import TRUSTED_MODULES, parse_module_names
from visattn.training.cli.parser import configure_jsonargparse

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data.colors", "[mauve]"], 1, "colors must be chosen from red"),
        (["--init_from", "nowhere.ckpt"], 1, "no model is named 'nowhere.ckpt'"),
        (["--trainer.accelerator", "none"], 1, "visattn: You selected an invalid accelerator"),
        (["--model", "ClassificationTask"], 2, "the following arguments are required: classifier"),
    ],
)
def test_errors_of_configs_have_no_traceback(
    arguments: list[str], code: int, message: str, tiny: Path, capsys: Capsys
) -> None:
    assert main(["fit", "--config", str(tiny), *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("config", "words", "named"),
    [
        ("", "--model CaptionTsk", "CaptionTsk"),
        ("model: {init_args: {captioner: {init_args: {hiden_size: 3}}}}", "", "hiden_size"),
        ("", "--trainer.max_epoch 3", "--trainer.max_epoch"),
        ("data: {init_args: {batch_size: twenty}}", "", "twenty"),
        ("", "--compile fast", "fast"),
    ],
)
def test_mistakes_end_with_code_2_and_are_named(
    config: str, words: str, named: str, tiny: Path, capsys: Capsys
) -> None:
    Path("mistake.yaml").write_text(config or "{}")
    arguments = ["--config", str(tiny), "--config", "mistake.yaml", *words.split()]
    assert main(["fit", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("visattn: ")
    assert named in error
    assert "Traceback" not in error
    assert not Path("runs").exists()


@pytest.fixture
def friend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a user module."""
    (tmp_path / "friendmod.py").write_text("class Friend: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "friendmod"
    sys.modules.pop("friendmod", None)
    monkeypatch.undo()
    configure_jsonargparse()


def accepted(path: str) -> bool:
    """Return whether the parser takes a class by this path."""
    configure_jsonargparse()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=type)
    try:
        parser.parse_args([f"--x={path}"])
    except ArgumentError:
        return False
    return True


def test_modules_are_trusted_while_the_variable_names_them(
    friend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not accepted("friendmod.Friend")
    assert friend not in sys.modules
    monkeypatch.setenv("VISATTN_TRUST_MODULES", f"elsewhere, {friend}")
    assert accepted("friendmod.Friend")
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "elsewhere")
    assert not accepted("friendmod.Friend")


def test_only_listed_modules_are_trusted() -> None:
    assert accepted("torch.nn.Linear")
    assert accepted("visattn.models.base.SmallEncoder")
    for path in (
        "torch.utils.data.DataLoader",
        "subprocess.Popen",
        "visattn.models.saving.json.JSONDecoder",  # reached through visattn
        "timm.optim.Lion",
        "lightning.fabric.Fabric",
        "torchmetricsevil.X",
    ):
        assert not accepted(path), path
    assert all(part.isidentifier() for name in TRUSTED_MODULES for part in name.split("."))


@pytest.mark.parametrize("text", ["os;", "a b", "*", "a..b", "/x/y", "a,b-c"])
def test_invalid_module_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="VISATTN_TRUST_MODULES must hold module names"):
        parse_module_names(text)
