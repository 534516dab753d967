"""Two processes train as one does that sees both their batches, and count nothing twice."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from class_miniatures import write_digits

from visattn.cli import main

HOUSE = Path(__file__).parents[1] / "house"
CONFIG = """\
trainer:
  accelerator: cpu
  max_epochs: 2
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  gradient_clip_val: 0.1
  callbacks:
    - class_path: run_diaries.RunDiary
      init_args: {folder: diary}
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: VisionTransformer
      init_args: {size: [28, 28], patch: 7, width: 8, depth: 1, heads: 2, mean: [0.1], std: [0.3]}
    optimizer:
      class_path: torch.optim.AdamW
      init_args: {lr: 1.0e-2, weight_decay: 0.1}
data:
  class_path: TorchvisionData
  init_args: {source: MNIST, root: ., validation: 7}
"""


def diaries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "diary").glob("*.json"))]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What was seen by one process with batches of 6, and by two with batches of 3."""
    folder = tmp_path_factory.mktemp("processes")
    write_digits(folder)
    (folder / "tiny.yaml").write_text(CONFIG)
    words = ["fit", "--config", "tiny.yaml"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["visattn"])
        patch.setenv("VISATTN_TRUST_MODULES", "run_diaries")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HOUSE), os.environ.get("PYTHONPATH", "")]))
        assert main([*words, "--data.batch", "6"]) == 0
        alone = diaries(folder)
        two = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch", "3"]
        command = [sys.executable, "-m", "visattn", *words, *two]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return {"alone": alone, "both": diaries(folder)}


def test_two_processes_share_each_batch(told: dict[str, Any]) -> None:
    (one,), (first, second) = told["alone"], told["both"]
    assert len(one["trained"]) == 4
    for whole, half, other in zip(one["trained"], first["trained"], second["trained"], strict=True):
        assert len(half) == len(other) == 3
        assert sorted(half + other) == sorted(whole)


def test_they_have_the_losses_and_end_with_the_weights_of_one(told: dict[str, Any]) -> None:
    (one,), (first, second) = told["alone"], told["both"]
    losses = [sum(pair) / 2 for pair in zip(first["loss"], second["loss"], strict=True)]
    assert losses == pytest.approx(one["loss"], rel=1e-5)
    assert first["loss"] != pytest.approx(second["loss"], rel=1e-3)
    assert first["weights"] == second["weights"]
    for name, value in one["weights"].items():
        assert flat(first["weights"][name]) == pytest.approx(flat(value), abs=1e-5), name


def test_validation_pictures_are_counted_once(told: dict[str, Any]) -> None:
    (one,), (first, second) = told["alone"], told["both"]
    (everything, _), *halves = (diary["validated"] for diary in (one, first, second))
    assert [len(labels) for labels, _ in halves] == [4, 3]
    assert sorted(halves[0][0] + halves[1][0]) == sorted(everything)
    assert len(one["scores"]) == 2
    for alone, *both in zip(one["scores"], first["scores"], second["scores"], strict=True):
        assert {"val/accuracy", "val/loss"} <= set(alone)
        for scores in both:
            assert scores == pytest.approx(alone, rel=1e-4)


def test_each_process_draws_numbers_of_its_own(told: dict[str, Any]) -> None:
    (one,), (first, second) = told["alone"], told["both"]
    assert first["seed"] == one["seed"] != second["seed"]


def flat(value: Any) -> list[float]:
    return (
        [number for part in value for number in flat(part)] if isinstance(value, list) else [value]
    )
