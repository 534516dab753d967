"""Training and scoring on two processes gives the results of one process with both batches."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import environment_of_runs, forked_run
from task_runs import FIVES, write_runs

from visattn.training.checkpoint import read_checkpoint
from visattn.training.command import main

# CIDEr-D warns about small sets of images; encoders are frozen.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning"),
    pytest.mark.filterwarnings("ignore:Found .* in eval mode"),
]
TRAINED = ("classes", "captions", "critical", "glimpses", "hard", "questions", "shapes")
BATCHES = {"critical": 4, "glimpses": 8}  # of one process; 6 for all others
SCORED = {  # tasks and commands, with scores and notes that must be among those that are compared
    ("captions", "validate"): (
        "val/bleu-4 val/cider-d val/correctness val_teacher_forced/lift val/loss"
    ),
    ("captions", "test"): (
        "test/cider-d teacher_forced/correctness shuffled/cider-d test/lift untrained/cider-d"
        " shuffled_teacher_forced/pointing_game teacher_forced/num_phrases"
    ),
    ("questions", "test"): (
        "test/mean_accuracy test/loss test/hop_2_step_1_mass test/other_image_accuracy"
    ),
    ("masks", "test"): "test/miou novel/dice novel/loss test_classes.json novel_classes.json",
    ("glimpses", "test"): (
        "test/error test/error_averaged_2x3_glimpses test/loss test_error_per_glimpse.json"
    ),
    ("glimpses", "validate"): "val/error",
    ("shapes", "test"): "test/accuracy test/worst_class_accuracy test/calibration_error",
    ("scenes", "test"): "novel/caption_accuracy teacher_forced/correctness shuffled/parsed",
}


def fit(folder: str, name: str, processes: int) -> list[str]:
    """Return the command that trains a task, with each batch split over processes."""
    words = ["fit", "--config", f"{name}.yaml", "--run", f"{folder}/{name}"]
    words += ["--data.batch_size", str(BATCHES.get(name, 6) // processes)]
    if name == "critical":
        words += ["--init_from", "single/captions/checkpoints/last.ckpt"]
    return words


def score(folder: str, name: str, command: str) -> list[str]:
    """Return the command that scores the checkpoint of the single process."""
    words = [command, "--config", f"{name}.yaml", "--run", f"{folder}/scored/{name}"]
    return [*words, "--ckpt_path", f"single/{name}/checkpoints/last.ckpt"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one process, in the folder `single`, and on two, in `two`."""
    folder = tmp_path_factory.mktemp("processes")
    write_runs(folder, FIVES, random=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["visattn"])
        patch.setenv("VISATTN_TRUST_MODULES", "task_runs")
        alone = dict.fromkeys((*TRAINED, *(name for name, _ in SCORED)))
        for words in (*(fit("single", name, 1) for name in alone),
                      *(score("single", *each) for each in SCORED)):  # fmt: skip
            assert main(words) == 0, words
    for words in (*(fit("two", name, 2) for name in TRAINED),
                  *(score("two", *each) for each in SCORED)):  # fmt: skip
        codes, said = forked_run(folder, *words, processes=2)
        assert codes == [0, 0], said
    return folder


def weights(runs: Path, folder: str, name: str) -> dict[str, torch.Tensor]:
    saved = read_checkpoint(runs / folder / name / "checkpoints" / "last.ckpt")
    return {key: value.double() for key, value in saved["state_dict"].items()}


def test_weights_and_best_scores_match_a_single_process(runs: Path) -> None:
    """After steps from the same weights, on all samples of each batch, with the same loss."""
    for name in TRAINED:
        files = (runs / folder / name / "run.json" for folder in ("single", "two"))
        alone, both = (json.loads(file.read_text())["fit"]["best"] for file in files)
        assert both == pytest.approx(alone, rel=1e-4, abs=1e-5), name
        single, two = (weights(runs, folder, name) for folder in ("single", "two"))
        assert single.keys() == two.keys(), name
        differences = {
            key: float((two[key] - value).abs().max())
            for key, value in single.items()
            if not key.endswith("attention.key.bias")  # no gradient but rounding, which Adam scales
        }
        assert max(differences.values()) < 1e-5, (name, differences)


def test_eleven_samples_have_the_same_scores_and_notes(runs: Path) -> None:
    """The notes of captions have an order of their own, but each photo has one caption."""
    for (name, word), expected in SCORED.items():
        single, two = (runs / each / "scored" / name for each in ("single", "two"))
        found: set[str] = set()
        for file in sorted(single.glob("*.json")):
            if file.name == "run.json":  # which has dates
                continue
            alone, both = (json.loads((each / file.name).read_text()) for each in (single, two))
            if file.name.endswith("_captions.json"):
                photos = [sorted(record["image_id"] for record in each) for each in (both, alone)]
                assert photos[0] == photos[1] == sorted(set(photos[0]))
            else:
                values = flat(alone)
                assert flat(both) == pytest.approx(values, rel=1e-6, abs=1e-7, nan_ok=True), file
                found |= {file.name, *(key.removeprefix("/") for key in values)}
        assert set(expected.split()) <= found, (name, word)


def flat(value: Any, path: str = "") -> dict[str, float]:
    """Return the numbers of nested lists and mappings by their place; 0 by place and word."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: v for key, part in items for place, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, str):
        return {f"{path}: {value}": 0.0}
    return {path: math.nan if value is None else value}


@pytest.mark.parametrize("command", ["visattn", "-m visattn", "torchrun"])
def test_each_way_to_start_two_processes(command: str, tmp_path: Path) -> None:
    write_runs(tmp_path, FIVES, random=False)
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node 2 -m -- visattn"
    starts = {
        "visattn": [str(Path(sys.executable).parent / "visattn")],
        "torchrun": [sys.executable, *torchrun.split()],
    }
    start = starts.get(command, [sys.executable, *command.split()])
    words = ["fit", "--config", "classes.yaml", "--data.batch_size", "3", "--run", "run"]
    ran = subprocess.run(
        [*start, *words, "--trainer.devices", "2", "--trainer.strategy", "ddp"],
        cwd=tmp_path,
        env=environment_of_runs(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "run/run.json").read_text())["fit"]["machine"]["processes"] == 2
