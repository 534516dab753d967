"""Parser errors are a few plain lines, and configs import trusted modules only."""

import sys
from argparse import ArgumentError
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from visattn.cli import main
from visattn.io.trusted_modules import TRUSTED_MODULES, parse_module_names
from visattn.training.cli.parser import configure_jsonargparse, format_error

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data.colors", "[mauve]"], 1, "visattn: colors must be chosen from red"),
        (["--model.init_from", "nowhere.ckpt"], 1, "visattn: no checkpoint at nowhere.ckpt"),
        (["--trainer.devices", "0"], 1, "visattn: trainer.devices must be auto, or a number"),
        (["--model", "ClassificationTask"], 2, "the following arguments are required: classifier"),
    ],
)
def test_config_errors_are_a_few_lines(
    arguments: list[str], code: int, message: str, tiny: Path, capsys: Capsys
) -> None:
    assert main(["fit", "--config", str(tiny), *arguments]) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("INFO")]
    assert message in "\n".join(lines)
    assert len(lines) <= 5
    assert "Namespace" not in "\n".join(lines)
    assert not Path("runs").exists()


def test_the_types_that_were_tried_are_left_out_and_a_short_value_is_repeated() -> None:
    message = """\
Parser key "trainer.precision":
  Does not validate against any of the Union subtypes
  Subtypes: [typing.Literal[16], <class 'NoneType'>]
  Errors:
    - Expected a typing.Literal[16]
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: 7"""
    assert format_error(message) == (
        'Parser key "trainer.precision":\n  Expected a typing.Literal[16]\n  Given value: 7'
    )
    assert format_error(message.replace(": 7", f": {'7' * 99}")).endswith("[16]")


def test_other_errors_are_unchanged() -> None:
    assert format_error("one line\n  and another") == "one line\n  and another"


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
        "visattn.models.saving.weight_files.json.JSONDecoder",  # reached through visattn
        "visattn.models.saving.state_dicts.zipfile.ZipFile",
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
