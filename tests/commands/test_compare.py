"""Blocks are compared over seeds: trainings, resume, paired intervals, tables and figure."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from classification_data import write_photo_folders

from visattn.commands.compare import Run, _write, latex_table, lines_of, markdown_table, row_options

CONFIG = """\
trainer: {accelerator: cpu, max_epochs: 1, enable_progress_bar: false,
  enable_model_summary: false, num_sanity_val_steps: 0, log_every_n_steps: 1}
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, stem_width: 4, img_size: [28, 28]}
data:
  class_path: ClassificationData
  init_args:
    source: {class_path: ClassFolders, init_args: {root: PHOTOS}}
    batch_size: 9
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_photo_folders(tmp_path / "photos")
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG.replace("PHOTOS", str(tmp_path / "photos")))
    return path


def test_comparison_resumes_and_says_that_the_test_split_is_the_validation_split(
    run: Callable[..., int], config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--rows", "none", "se:reduction=2", "--seeds", "3", "--out", out]
    assert run("compare --config", config, *words, "--options", "data.batch_size=6") == 0
    table = (out / "compare.md").read_text()
    assert table in capsys.readouterr().out
    assert (
        "| row | parameters | seeds | accuracy, % | difference to none (95 % interval) |" in table
    )
    assert "6 of the test photos are also validation photos" in table
    assert "validation photos" in (out / "compare.tex").read_text()
    plain, block = csv.DictReader((out / "compare.csv").read_text().splitlines())
    assert (plain["row"], block["row"], block["seed"]) == ("none", "se:reduction=2", "3")
    assert int(block["parameters"]) > int(plain["parameters"])
    assert 0 <= float(block["accuracy"]) <= 1
    assert (out / "compare.png").read_bytes()[:4] == b"\x89PNG"
    trained = out / "se,reduction=2" / "3"
    assert "reduction: 2" in (trained / "config.yaml").read_text()

    # Interrupted before its test: the run goes on from its last checkpoint.
    (trained / "test.json").unlink()
    assert run("compare --config", config, *words, "--options", "data.batch_size=6") == 0
    [first, second] = (json.loads((out / each / "run.json").read_text())["fit"]["sessions"]
                       for each in ("none/3", "se,reduction=2/3"))  # fmt: skip
    assert (first, second) == (1, 2)
    assert run("compare --config", config, *words) == 1
    assert "other --options: choose another --out" in capsys.readouterr().err


@pytest.mark.parametrize("best", [{"val/accuracy": 0.5}, None], ids=["validated", "not"])
def test_interrupted_training_leaves_the_table_of_the_others(
    best: dict[str, float] | None,
    run: Callable[..., int],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def train(words: list[str]) -> int:
        folder = Path(words[words.index("--run") + 1])
        if words[0] == "fit":
            started.append(f"{folder.parent.name} {folder.name}")
            return 143 if len(started) == 3 else 0
        folder.mkdir(parents=True)
        record = {"fit": {"parameters": 9, "wall_seconds": 60, "best": best}}
        (folder / "run.json").write_text(json.dumps({**record, "test": {"shared": 0}}))
        (folder / "test.json").write_text('{"test/accuracy": 0.5}')
        return 0

    monkeypatch.setattr("visattn.training.command.main", train)
    words = ["--config", config, "--rows", "none", "se", "--seeds", "0", "1", "--out", tmp_path]
    assert run("compare", *words) == 143
    output = capsys.readouterr()
    assert "| none | 9 | 1 | 50.00 |  | 1.0 |" in output.out
    assert "none, seed 1: stopped; the same command resumes it" in output.err
    assert run("compare", *words) == 0
    assert started == ["none 0", "se 0", "none 1", "none 1", "se 1"]


def test_table_matches_hand_computation() -> None:
    scores = {("none", 0): 0.90, ("none", 1): 0.92, ("se", 0): 0.91, ("se", 1): 0.95}
    runs = [Run(*key, 1234, 1.5, {"accuracy": value}) for key, value in scores.items()]
    plain, block = lines_of([*runs, Run("se", 7, 1234, 1.5, {"accuracy": 0.5})], "accuracy")
    assert plain.scores == pytest.approx([90, 92])
    assert not plain.gains
    assert block.gains == pytest.approx([1, 3])  # seed 7 has no pair
    [other] = lines_of([Run("none", 0, 1, 1.0, {"loss": 2.5})], "loss")
    assert other.scores == [2.5]
    assert markdown_table([["a", "b"], ["c", "d"]], "").count("\n") == 3
    assert r"\multicolumn{2}{l}{\footnotesize 5\%}" in latex_table([["a", "b"]], "5%")


def test_scores_below_zero_are_not_called_percent(tmp_path: Path) -> None:
    runs = [Run("none", seed, 10, 1.0, {"gain": share}) for seed, share in enumerate((-0.5, 0.5))]
    _write(runs, "gain", tmp_path, "svg")
    assert "| gain |" in (tmp_path / "compare.md").read_text()


def test_rows_are_blocks_with_arguments_or_options_of_fit() -> None:
    assert row_options("as-is", CONFIG) == []
    assert row_options("none,data.seed=1".replace(",", ":"), CONFIG) == [
        "model.classifier.block=none",
        "model.classifier.block_kwargs={}",
        "data.seed=1",
    ]
    assert row_options("model.optim.betas=[0.9,0.99],data.seed=1", CONFIG) == [
        "model.optim.betas=[0.9,0.99]",
        "data.seed=1",
    ]
    own = CONFIG.replace("AttentionResNet", "my_net.Net").replace(
        "depth: 8", "blocks: {se: layer*}"
    )
    assert row_options("eca", own) == ['model.classifier.blocks={"eca": "layer*"}']
    assert row_options("none", own) == ["model.classifier.blocks={}"]
    for row, config, match in (
        ("cbamm", CONFIG, "cbam"),
        ("se:reduction=4", own, "take no arguments"),
        ("se", CONFIG.replace("classifier:", "captioner:"), "takes no block"),
    ):
        with pytest.raises((ValueError, KeyError), match=match):
            row_options(row, config)
