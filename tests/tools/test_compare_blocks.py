"""Comparison of blocks: training runs, their records and the tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from classification_data import write_digits

from tools import compare_blocks
from tools.compare_blocks import count, epochs, interval, row_of, spread, table

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
trainer: {accelerator: cpu, max_epochs: 1, enable_progress_bar: false,
  enable_model_summary: false, num_sanity_val_steps: 0, log_every_n_steps: 1}
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, stem_width: 4, img_size: [28, 28], mean: [0.1], std: [0.3]}
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: TorchvisionImages
      init_args:
        {dataset: MNIST, root: DIGITS, val: 5}
    batch_size: 9
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.argv", ["compare_blocks"])
    write_digits(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG.replace("DIGITS", str(tmp_path)))
    return path


def cifar() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / "cifar10_resnet20.yaml").read_text())


def test_rows_are_blocks_with_arguments() -> None:
    assert row_of("none", {}).changes == {"block": "none", "block_kwargs": {}}
    assert row_of("se:reduction=4,bias=false,init=paper", {}).changes == {
        "block": "se",
        "block_kwargs": {"reduction": 4, "bias": False},
        "init": "paper",
    }


def test_rows_are_arguments_of_classifiers_without_blocks() -> None:
    assert row_of("as-is", {}).changes == {}
    assert row_of("with:mean=[0.5,0.25],depth=4,block_kwargs={reduction: 1}", {}).changes == {
        "mean": [0.5, 0.25],
        "depth": 4,
        "block_kwargs": {"reduction": 1},
    }


@pytest.mark.parametrize("block", ["se", "cbam", "coordinate", "scse"])
def test_wider_network_has_as_many_parameters(block: str) -> None:
    changes = row_of(f"wider:{block}", cifar()).changes
    assert changes["block"] == "none"
    plain, wide = count({"depth": 20}), count({"depth": 20}, stage_widths=changes["stage_widths"])
    target = count({"depth": 20}, block=block)
    assert plain < wide
    assert abs(wide - target) < 0.002 * target


def test_only_attention_resnet_is_made_wider() -> None:
    config = yaml.safe_load((ROOT / "configs" / "flowers_mobilenetv2_cbam.yaml").read_text())
    with pytest.raises(ValueError, match="only an AttentionResNet can be made wider"):
        row_of("wider:cbam", config)


def record(row: str, seed: int, accuracy: float, validation: list[float]) -> dict[str, Any]:
    test = {"test/accuracy": accuracy, "test/calibration_error": 0.02}
    others = {"parameters": 1234, "seconds": 90.0}
    return {"row": row, "seed": seed, "test": test, "validation": validation, **others}


def test_table_matches_hand_computation() -> None:
    lines = [
        record("none", 0, 0.90, [0.5, 0.9]),
        record("none", 1, 0.92, [0.7, 0.9]),
        record("se", 0, 0.91, [0.6]),
        record("se", 1, 0.95, [0.6]),
    ]
    *_, plain, se = table(lines).splitlines()
    assert plain == "| none | 1,234 | 2 | 91.00 ± 1.41 |  | 2.00 ± 0.00 | 1.5 |"
    assert se == "| se | 1,234 | 2 | 93.00 ± 2.83 | +2.00 (-10.71 to +14.71) | 2.00 ± 0.00 | 1.5 |"
    head, *_ = table(lines, ["calibration_error"]).splitlines()
    assert head == (
        "| row | parameters | seeds | calibration error, % | difference to the first, points | "
        "minutes |"
    )
    assert epochs(lines).splitlines()[2:] == ["| none | 60.0 | 90.0 |", "| se | 60.0 |"]


def test_one_seed_has_no_deviation() -> None:
    assert spread([93.0]) == "93.00"
    assert interval([2.0]) == "+2.00"
    assert interval([]) == "no seed in common"


def test_finished_runs_are_not_repeated(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trained = tmp_path / "out" / "runs.jsonl", []

    def train(config: Path, row: Any, seed: int, **_: Any) -> dict[str, Any]:
        trained.append((row.name, seed))
        if len(trained) == 3:
            raise RuntimeError("cut off")
        recipe = compare_blocks.recipe(config, [])
        return {**record(row.name, seed, 0.9, [0.9]), "recipe": recipe}

    arguments = ["--config", str(config), "--rows", "none", "se", "--seeds", "0", "1"]
    arguments += ["--out", str(out)]
    with pytest.raises(RuntimeError, match="cut off"):
        compare_blocks.main(arguments, train)
    assert trained == [("none", 0), ("se", 0), ("none", 1)]
    assert compare_blocks.main(arguments, train) == 0
    assert trained[3:] == [("none", 1), ("se", 1)]
    assert "| se | 1,234 | 2 |" in capsys.readouterr().out
    config.write_text(config.read_text() + "# another recipe\n")
    assert compare_blocks.main([*arguments, "--table"], train) == 0
    assert len(trained) == 5
    assert "| se |" not in capsys.readouterr().out


def test_comparison_end_to_end(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    arguments = ["--config", str(config), "--rows", "wider:se:reduction=2", "se:reduction=2"]
    arguments += ["--seeds", "3", "--out", str(out), "--", "--data.batch_size", "6"]
    assert compare_blocks.main(arguments) == 0
    wide, se = map(json.loads, out.read_text().splitlines())
    assert (wide["row"], se["row"], se["seed"]) == ("wider:se:reduction=2", "se:reduction=2", 3)
    assert se["changes"]["block_kwargs"] == {"reduction": 2}
    assert 0 <= se["test"]["test/accuracy"] <= 1
    assert len(se["validation"]) == 1
    assert abs(wide["parameters"] - se["parameters"]) < 0.02 * se["parameters"]
    assert "| se:reduction=2 | " in capsys.readouterr().out


def test_comparison_of_transformers_end_to_end(config: Path, tmp_path: Path) -> None:
    recipe = yaml.safe_load(config.read_text())
    recipe["model"]["init_args"]["classifier"] = {
        "class_path": "VisionTransformer",
        "init_args": {
            "img_size": [28, 28],
            "patch_size": 7,
            "embed_dim": 8,
            "depth": 2,
            "num_heads": 2,
            "mean": [0.1],
            "std": [0.3],
        },
    }
    config.write_text(yaml.safe_dump(recipe))
    out = tmp_path / "runs.jsonl"
    windowed = "with:depth=3,pos_embed_type=sine"
    arguments = ["--config", str(config), "--rows", "as-is", windowed, "--seeds", "3"]
    assert compare_blocks.main([*arguments, "--out", str(out)]) == 0
    plain, changed = map(json.loads, out.read_text().splitlines())
    assert changed["changes"]["pos_embed_type"] == "sine"
    assert plain["parameters"] != changed["parameters"]
    assert Path(changed["run"]).is_dir()


def test_score_functions_of_recognizers_compared_from_end_to_end(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = yaml.safe_load(config.read_text())
    encoder = {"class_path": "SmallEncoder", "init_args": {"img_size": [24, 72], "channels": 8}}
    recognizer = {"encoder": encoder, "hidden_size": 8, "embed_dim": 5}
    recipe["model"] = {
        "class_path": "SequenceRecognitionTask",
        "init_args": {
            "captioner": {"class_path": "SequenceRecognizer", "init_args": recognizer},
            "beam_size": 1,
        },
    }
    spec = {"canvas": {"size": [24, 72]}, "max_digits": 2}
    options = {"root": str(tmp_path), "spec": spec, "val": 5}
    source = {"class_path": "DigitCanvases", "init_args": options}
    recipe["data"] = {
        "class_path": "SequenceData", "init_args": {"source": source, "batch_size": 9},
    }  # fmt: skip
    config.write_text(yaml.safe_dump(recipe))
    out = tmp_path / "runs.jsonl"
    rows = ["with:score=location", "with:score=dot"]
    arguments = ["--config", str(config), "--rows", *rows, "--seeds", "3", "--out", str(out)]
    assert compare_blocks.main([*arguments, "--metrics", "sequence_error", "digit_error"]) == 0
    location, dot = map(json.loads, out.read_text().splitlines())
    assert location["parameters"] - dot["parameters"] == 3 * 9 * 8  # a weight per place
    assert dot["validation"] == [1.0]
    assert "| sequence error, % | difference to the first, points | digit error, % | minutes |" in (
        capsys.readouterr().out
    )
