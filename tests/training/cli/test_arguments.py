"""Usage errors of fit, validate and test, and arguments that a run supplies."""

from pathlib import Path

import pytest

from visattn.training.cli.arguments import (
    complete_args,
    find_config,
    option_values,
    resolve_configs,
    validate_args,
)


@pytest.fixture
def run() -> Path:
    """A run in runs/demo of the working folder."""
    folder = Path("runs/demo")
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "checkpoints/best.ckpt", "checkpoints/last.ckpt"):
        (folder / name).touch()
    Path("configs").mkdir()
    Path("configs/scenes_demo.yaml").touch()
    Path("mine.yaml").touch()
    return folder


def test_option_values_in_both_spellings() -> None:
    arguments = ["--run", "a", "--run=b=c", "--running", "d", "--run"]
    assert option_values(arguments, "--run") == ["a", "b=c"]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("fit", "", "fit needs --config NAME or FILE.yaml; visattn configs lists the names"),
        ("fit", "--config scenes_dmo.yaml", "did you mean scenes_demo?"),
        ("fit", "--config=nowhere.yaml", "there is no config nowhere.yaml"),
        ("fit", "--config scenes_dmo", "there is no config scenes_dmo; did you mean scenes_demo"),
        ("test", "--config=scenes_dmo", "scenes_dmo; did you mean scenes_demo"),
        ("fit", "--config qqq", "there is no config qqq; visattn configs lists"),
        ("fit", "--config scenes_dmo --print_config", "there is no config scenes_dmo"),
        ("fit", "--config mine", "there is no config mine; did you mean mine.yaml?"),
        ("fit", "--config configs/vit_cifar10", "there is no config configs/vit_cifar10"),
        ("test", "", "test needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and"),
    ],
)
def test_usage_errors_are_found_without_lightning(
    command: str, arguments: str, message: str, run: Path
) -> None:
    assert message in validate_args(command, arguments.split())


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("fit", "--config configs/scenes_demo.yaml --data.batch_size 3"),
        ("fit", "-c configs/scenes_demo.yaml"),
        (
            "fit",
            "-c scenes_demo -c vit_cifar10 --trainer.callbacks+=A --trainer.callbacks.x 1 "
            "--trainer.callbacks+=B --trainer.callbacks.x 2",
        ),
        ("fit", "--config scenes_demo"),
        ("validate", "--config=vit_cifar10 --ckpt_path best.ckpt"),
        ("fit", "--model CaptioningTask --data ScenesDataModule"),
        ("fit", "--print_config"),
        ("fit", "--model.help CaptioningTask"),
        ("test", "--run runs/demo"),
        ("test", "--ckpt_path runs/demo/checkpoints/last.ckpt"),
        ("validate", "--config configs/scenes_demo.yaml"),
        ("fit", "--config {} --data.phrases boxes.yaml"),
    ],
)
def test_other_arguments_are_left_to_the_parser(command: str, arguments: str, run: Path) -> None:
    assert validate_args(command, arguments.split()) == ""


@pytest.mark.parametrize("command", ["validate", "test"])
def test_a_run_supplies_its_config_and_its_best_checkpoint(command: str, run: Path) -> None:
    arguments = complete_args(command, ["--run", "runs/demo", "--data.batch_size", "3"])
    assert arguments[:2] == ["--config", "runs/demo/config.yaml"]
    assert option_values(arguments, "--ckpt_path") == ["runs/demo/checkpoints/best.ckpt"]
    assert option_values(arguments, "--run")[-1] == "runs/demo"
    assert arguments[2:6] == ["--run", "runs/demo", "--data.batch_size", "3"]


def test_explicit_arguments_override_the_run(run: Path) -> None:
    own = ["--run", "runs/demo", "--config", "configs/scenes_demo.yaml"]
    assert option_values(complete_args("test", own), "--config")[-1] == "configs/scenes_demo.yaml"
    last = "runs/demo/checkpoints/last.ckpt"
    arguments = complete_args("test", ["--run", "runs/demo", "--ckpt_path", last])
    assert option_values(arguments, "--ckpt_path") == [last]
    everything = [*own, "--ckpt_path", last]
    assert complete_args("test", everything) == everything


def test_a_checkpoint_supplies_the_config_of_its_run(run: Path) -> None:
    arguments = complete_args("test", ["--ckpt_path", "runs/demo/checkpoints/last.ckpt"])
    assert arguments[:2] == ["--config", "runs/demo/config.yaml"]
    assert option_values(arguments, "--run") == ["runs/demo"]  # overrides the folder in the config
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at nowhere.ckpt"):
        complete_args("test", ["--ckpt_path", "nowhere.ckpt"])


def test_complete_args_is_idempotent(run: Path) -> None:
    arguments = complete_args("test", ["--run", "runs/demo"])
    assert complete_args("test", arguments) == arguments


def test_fit_arguments_stay_as_they_are(run: Path) -> None:
    arguments = ["--config", "a.yaml", "--run", "runs/demo"]
    assert complete_args("fit", arguments) == arguments


@pytest.mark.parametrize("template", ["--config {}", "--config={}", "-c {}", "-c={}"])
def test_names_of_configs_are_replaced_by_their_files(template: str, run: Path) -> None:
    file = str(find_config("vit_cifar10"))
    arguments = ["--run", "vit_cifar10", *template.format("vit_cifar10").split()]
    expected = ["--run", "vit_cifar10", *template.format(file).split()]
    assert resolve_configs(arguments) == expected


def test_files_take_precedence_over_names_of_configs(run: Path) -> None:
    Path("vit_mnist").touch()
    Path("scenes_demo").mkdir()
    for name in ("vit_mnist", "vit_cifar10.yaml", "./vit_cifar10", "unknown", "{}", "a: {}\n"):
        assert resolve_configs(["--config", name]) == ["--config", name]
    assert resolve_configs(["--config", "scenes_demo"]) != ["--config", "scenes_demo"]
