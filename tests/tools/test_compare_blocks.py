"""Blocks compared: what is trained, what is remembered, what the table says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from class_miniatures import write_digits

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
      init_args: {depth: 8, width: 4, size: [28, 28], mean: [0.1], std: [0.3]}
data:
  class_path: TorchvisionDataModule
  init_args: {source: MNIST, root: DIGITS, validation: 5, batch: 9}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.argv", ["compare_blocks"])
    write_digits(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG.replace("DIGITS", str(tmp_path)))
    return path


def cifar() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "configs" / "cifar10_resnet20_none.yaml").read_text())


def test_rows_are_blocks_with_options() -> None:
    assert row_of("none", {}).changes == {"block": "none", "options": {}}
    assert row_of("se:reduction=4,bias=false,init=paper", {}).changes == {
        "block": "se",
        "options": {"reduction": 4, "bias": False},
        "init": "paper",
    }


def test_rows_are_arguments_of_a_classifier_that_takes_no_blocks() -> None:
    assert row_of("as-is", {}).changes == {}
    assert row_of("with:attend=[window,shifted],extent=4,stem_options={layers: 1}", {}).changes == {
        "attend": ["window", "shifted"],
        "extent": 4,
        "stem_options": {"layers": 1},
    }


@pytest.mark.parametrize("block", ["se", "cbam", "coordinate", "scse"])
def test_the_wider_network_has_as_many_parameters(block: str) -> None:
    changes = row_of(f"wider:{block}", cifar()).changes
    assert changes["block"] == "none"
    plain, wide = count({"depth": 20}), count({"depth": 20}, inner=changes["inner"])
    wanted = count({"depth": 20}, block=block)
    assert plain < wide
    assert abs(wide - wanted) < 0.002 * wanted


def test_only_our_own_network_is_made_wider() -> None:
    config = yaml.safe_load((ROOT / "configs" / "flowers_mobilenetv2_cbam.yaml").read_text())
    with pytest.raises(ValueError, match="only an AttentionResNet can be made wider"):
        row_of("wider:cbam", config)


def told(row: str, seed: int, accuracy: float, validation: list[float]) -> dict[str, Any]:
    test = {"test/accuracy": accuracy, "test/calibration": 0.02}
    more = {"parameters": 1234, "seconds": 90.0}
    return {"row": row, "seed": seed, "test": test, "validation": validation, **more}


def test_the_table_by_hand() -> None:
    lines = [
        told("none", 0, 0.90, [0.5, 0.9]),
        told("none", 1, 0.92, [0.7, 0.9]),
        told("se", 0, 0.91, [0.6]),
        told("se", 1, 0.95, [0.6]),
    ]
    *_, plain, se = table(lines).splitlines()
    assert plain == "| none | 1,234 | 2 | 91.00 ± 1.41 |  | 2.00 ± 0.00 | 1.5 |"
    assert se == "| se | 1,234 | 2 | 93.00 ± 2.83 | +2.00 (-10.71 to +14.71) | 2.00 ± 0.00 | 1.5 |"
    assert epochs(lines).splitlines()[2:] == ["| none | 60.0 | 90.0 |", "| se | 60.0 |"]


def test_one_seed_has_no_spread() -> None:
    assert spread([93.0]) == "93.00"
    assert interval([2.0]) == "+2.00"
    assert interval([]) == "no seed in common"


def test_what_is_there_is_not_trained_again(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, asked = tmp_path / "out" / "runs.jsonl", []

    def train(config: Path, row: Any, seed: int, **_: Any) -> dict[str, Any]:
        asked.append((row.name, seed))
        if len(asked) == 3:
            raise RuntimeError("cut off")
        recipe = compare_blocks.recipe(config, [])
        return {**told(row.name, seed, 0.9, [0.9]), "recipe": recipe}

    words = ["--config", str(config), "--rows", "none", "se", "--seeds", "0", "1"]
    words += ["--out", str(out)]
    with pytest.raises(RuntimeError, match="cut off"):
        compare_blocks.main(words, train)
    assert asked == [("none", 0), ("se", 0), ("none", 1)]
    assert compare_blocks.main(words, train) == 0
    assert asked[3:] == [("none", 1), ("se", 1)]
    assert "| se | 1,234 | 2 |" in capsys.readouterr().out
    config.write_text(config.read_text() + "# another recipe\n")
    assert compare_blocks.main([*words, "--table"], train) == 0
    assert len(asked) == 5
    assert "| se |" not in capsys.readouterr().out


def test_a_comparison_from_end_to_end(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    words = ["--config", str(config), "--rows", "wider:se:reduction=2", "se:reduction=2"]
    words += ["--seeds", "3", "--out", str(out), "--", "--data.batch", "6"]
    assert compare_blocks.main(words) == 0
    wide, se = map(json.loads, out.read_text().splitlines())
    assert (wide["row"], se["row"], se["seed"]) == ("wider:se:reduction=2", "se:reduction=2", 3)
    assert se["changes"]["options"] == {"reduction": 2}
    assert 0 <= se["test"]["test/accuracy"] <= 1
    assert len(se["validation"]) == 1
    assert abs(wide["parameters"] - se["parameters"]) < 0.02 * se["parameters"]
    assert "| se:reduction=2 | " in capsys.readouterr().out


def test_transformers_compared_from_end_to_end(config: Path, tmp_path: Path) -> None:
    recipe = yaml.safe_load(config.read_text())
    recipe["model"]["init_args"]["classifier"] = {
        "class_path": "VisionTransformer",
        "init_args": {
            "size": [28, 28],
            "patch": 7,
            "width": 8,
            "depth": 2,
            "heads": 2,
            "mean": [0.1],
            "std": [0.3],
        },
    }
    config.write_text(yaml.safe_dump(recipe))
    out = tmp_path / "runs.jsonl"
    windowed = "with:attend=[window,shifted],extent=2,positions=relative"
    words = ["--config", str(config), "--rows", "as-is", windowed, "--seeds", "3"]
    assert compare_blocks.main([*words, "--out", str(out)]) == 0
    plain, changed = map(json.loads, out.read_text().splitlines())
    assert changed["changes"]["attend"] == ["window", "shifted"]
    assert plain["parameters"] != changed["parameters"]
    assert Path(changed["run"]).is_dir()
