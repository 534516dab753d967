"""Parser errors are a few plain lines, and configs import trusted modules only."""

import sys
from argparse import ArgumentError
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from visattn.cli import main
from visattn.io.trusted_modules import TRUSTED_MODULES, parse_module_names
from visattn.training.cli.errors import format_error
from visattn.training.cli.parser import configure_jsonargparse

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data.colors", "[mauve]"], 1, "visattn: colors must be chosen from red"),
        (["--init_from", "nowhere.ckpt"], 1, "visattn: no checkpoint at nowhere.ckpt"),
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


NO_OPTION = "Option '{}' is not accepted; did you mean {}?"


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        (
            "",
            "--model CaptionTsk",
            "model: there is no class CaptionTsk; did you mean CaptioningTask?",
        ),
        (
            "",
            "--data SceneData",
            "data: there is no class SceneData; did you mean ScenesDataModule?",
        ),
        ("", "--model.captioner ShowAttendTel", "ShowAttendTel; did you mean ShowAttendTell?"),
        ("", "--trainer.callbacks+=CaptionPanel", "CaptionPanel; did you mean CaptionPanels?"),
        (
            "model: {init_args: {captioner: {init_args: {hiden_size: 3}}}}",
            "",
            f"model.captioner: {NO_OPTION.format('hiden_size', 'hidden_size')}",
        ),
        (
            "",
            "--model.captioner.encoder.coord 3",
            f"model.captioner.encoder: {NO_OPTION.format('coord', 'coord_scale')}",
        ),
        (
            "model: {init_args: {optim: {optimizer: {class_path: torch.optim.AdamW, "
            "init_args: {wieght_decay: 3}}}}}",
            "",
            f"model.optim.optimizer: {NO_OPTION.format('wieght_decay', 'weight_decay')}",
        ),
        (
            "",
            "--model.optim.warm 3",
            f"model: {NO_OPTION.format('optim.warm', 'optim.warmup_steps')}",
        ),
        (
            "data: {init_args: {batchsize: 3}}",
            "",
            f"data: {NO_OPTION.format('batchsize', 'batch_size')}",
        ),
        ("trainer: {max_epoch: 3}", "", f"trainer: {NO_OPTION.format('max_epoch', 'max_epochs')}"),
        ("trainner: {max_epochs: 3}", "", NO_OPTION.format("trainner", "trainer")),
        (
            "trainer: {callbacks: [{class_path: EMA, init_args: {deccay: 3}}]}",
            "",
            f"trainer.callbacks: {NO_OPTION.format('deccay', 'decay')}",
        ),
        ("", "--trainer.max_epoch 3", "--trainer.max_epoch; did you mean --trainer.max_epochs?"),
        (
            "",
            "--trainner.max_epochs=3",
            "--trainner.max_epochs; did you mean --trainer.max_epochs?",
        ),
        ("", "--save_min 3", "unrecognized argument --save_min; did you mean --save_minutes?"),
        (
            "data: {init_args: {batch_size: twenty}}",
            "",
            "data.batch_size must be an integer, got 'twenty'",
        ),
        (
            "",
            "--model.captioner.hidden_size [7]",
            "model.captioner.hidden_size must be an integer, got [7]",
        ),
        ("", "--trainer.max_epochs many", "trainer.max_epochs must be an integer, got 'many'"),
        (
            "",
            "--compile fast",
            "compile must be one of 'no', 'default', 'reduce-overhead', got 'fast'",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_level_and_what_was_meant(
    config: str, words: str, message: str, tiny: Path, capsys: Capsys
) -> None:
    Path("mistake.yaml").write_text(config or "{}")
    arguments = ["--config", str(tiny), "--config", "mistake.yaml", *words.split()]
    assert main(["fit", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{message}\n")
    assert error.count("\n") == 1
    assert not Path("runs").exists()


def test_a_missing_file_is_reported_with_the_folder_that_was_searched(
    tmp_path: Path, tiny: Path, capsys: Capsys
) -> None:
    config = tmp_path / "configs" / "mine.yaml"
    config.parent.mkdir()
    config.write_text(
        "data: {class_path: CaptionDataModule, init_args: {captions: a.csv, photos: b}}"
    )
    (config.parent / "a.csv").write_text("photo,caption")
    assert main(["fit", "--config", str(tiny), "--config", str(config)]) == 1
    error = capsys.readouterr().err
    assert "a.csv is not a file; relative paths start at the working directory, " in error
    assert error.endswith(f"{tmp_path}; beside the config is {config.parent / 'a.csv'}\n")


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
