"""What is typed after fit, validate and test: plain mistakes, and runs that know the rest."""

from pathlib import Path

import pytest

from visattn.training.cli.arguments import completed, mistake, values


@pytest.fixture
def run() -> Path:
    """A run in runs/demo of the working folder, which is the test's own."""
    folder = Path("runs/demo")
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "checkpoints/best.ckpt", "checkpoints/last.ckpt"):
        (folder / name).touch()
    Path("configs").mkdir()
    Path("configs/scenes_demo.yaml").touch()
    return folder


def test_values_come_in_both_forms() -> None:
    words = ["--run", "a", "--run=b=c", "--running", "d", "--run"]
    assert values(words, "--run") == ["a", "b=c"]


@pytest.mark.parametrize(
    ("word", "options", "said"),
    [
        ("fit", "", "fit needs --config FILE.yaml: one experiment, as in configs/"),
        ("fit", "--confg a.yaml", "as in configs/; for --confg, did you mean --config?"),
        ("fit", "configs/scenes_demo.yaml", "did you mean --config configs/scenes_demo.yaml?"),
        ("fit", "--config configs/scenes_demo.yaml last.ckpt", "mean --ckpt_path last.ckpt?"),
        ("fit", "--config scenes_dmo.yaml", "mean configs/scenes_demo.yaml?"),
        ("fit", "--config=nowhere.yaml", "there is no config nowhere.yaml"),
        ("fit", "--config configs", "--config configs is a folder; give one of the files in it"),
        ("test", "", "test needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and"),
        ("test", "runs/demo", "what is runs/demo? did you mean --run runs/demo?"),
        ("validate", "--rnu runs/demo", "are random; for --rnu, did you mean --run?"),
    ],
)
def test_a_plain_mistake_is_answered_at_once(word: str, options: str, said: str, run: Path) -> None:
    assert said in mistake(word, options.split())


@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("fit", "--config configs/scenes_demo.yaml --data.batch 3"),
        ("fit", "-c configs/scenes_demo.yaml"),
        ("fit", "--model CaptioningTask --data ScenesDataModule"),
        ("fit", "--print_config"),
        ("fit", "--model.help CaptioningTask"),
        ("test", "--run runs/demo"),
        ("test", "--ckpt_path runs/demo/checkpoints/last.ckpt"),
        ("validate", "--config configs/scenes_demo.yaml"),
        ("fit", "--config {} --data.phrases boxes.yaml"),
    ],
)
def test_what_may_be_right_is_let_through(word: str, options: str, run: Path) -> None:
    assert mistake(word, options.split()) == ""


@pytest.mark.parametrize("word", ["validate", "test"])
def test_a_run_brings_its_config_and_its_best_checkpoint(word: str, run: Path) -> None:
    words = completed(word, ["--run", "runs/demo", "--data.batch", "3"])
    assert words[:2] == ["--config", "runs/demo/config.yaml"]
    assert values(words, "--ckpt_path") == ["runs/demo/checkpoints/best.ckpt"]
    assert values(words, "--run")[-1] == "runs/demo"
    assert words[2:6] == ["--run", "runs/demo", "--data.batch", "3"]


def test_what_is_typed_wins(run: Path) -> None:
    own = ["--run", "runs/demo", "--config", "configs/scenes_demo.yaml"]
    assert values(completed("test", own), "--config")[-1] == "configs/scenes_demo.yaml"
    last = "runs/demo/checkpoints/last.ckpt"
    words = completed("test", ["--run", "runs/demo", "--ckpt_path", last])
    assert values(words, "--ckpt_path") == [last]
    everything = [*own, "--ckpt_path", last]
    assert completed("test", everything) == everything


def test_a_checkpoint_alone_brings_the_config_of_its_run(run: Path) -> None:
    words = completed("test", ["--ckpt_path", "runs/demo/checkpoints/last.ckpt"])
    assert words[:2] == ["--config", "runs/demo/config.yaml"]
    assert values(words, "--run") == ["runs/demo"]  # a config may name the folder it once had
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at nowhere.ckpt"):
        completed("test", ["--ckpt_path", "nowhere.ckpt"])


def test_the_processes_of_a_run_get_the_same_words(run: Path) -> None:
    words = completed("test", ["--run", "runs/demo"])
    assert completed("test", words) == words


def test_training_is_told_nothing_of_runs(run: Path) -> None:
    words = ["--config", "a.yaml", "--run", "runs/demo"]
    assert completed("fit", words) == words
