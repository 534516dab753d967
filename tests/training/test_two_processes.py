"""Training and scoring on two processes gives the results of one process with both batches."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rank_commands import TWO_RANKS, environment, run_commands, run_on_two_ranks
from task_configs import write_task_configs

from visattn.training.checkpoint import read_checkpoint

# CIDEr-D warns about small sets of images; SCST trains in eval mode, without dropout.
pytestmark = [
    pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning"),
    pytest.mark.filterwarnings("ignore:Found .* in eval mode"),
]
BATCHES = {"critical": 4, "glimpses": 8}  # of one process; 6 for all others


class TrainedTasks(NamedTuple):
    """Tasks that ran on one process (folder `single`) and on two (folder `two`)."""

    folder: Path
    trained: tuple[str, ...]
    """Tasks that were trained on one process and on two."""
    scored: tuple[tuple[str, str], ...]
    """Tasks and commands: trained on one process, scored on one and on two."""

    def diaries(self, name: str) -> list[dict[str, Any]]:
        """Return the training log of the single process, then those of the two."""
        paths = [*sorted(self.folder.glob(f"single/{name}/diary/*.json"))]
        paths += sorted(self.folder.glob(f"two/{name}/diary/*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def weights(self, folder: str, name: str) -> dict[str, torch.Tensor]:
        saved = read_checkpoint(self.folder / folder / name / "checkpoints" / "last.ckpt")
        return {key: value.double() for key, value in saved["state_dict"].items()}

    def scores(self, folder: str, name: str, word: str) -> dict[str, float]:
        path = self.folder / folder / "scored" / name / f"{word}.json"
        record = json.loads(path.read_text())
        scores = {key: math.nan if value is None else value for key, value in record.items()}
        return {key: value for key, value in scores.items() if not isinstance(value, str)}


QUICK = TrainedTasks(
    Path(),
    ("digits", "captions", "questions"),
    (("captions", "test"), ("glimpses", "test"), ("questions", "test"), ("masks", "test")),
)
MORE = TrainedTasks(
    Path(),
    ("captions", "critical", "glimpses", "hard", "shapes"),
    (
        ("captions", "validate"), ("shapes", "validate"), ("shapes", "test"),
        ("glimpses", "validate"), ("scenes", "test"), ("scenes", "validate"),
    ),
)  # fmt: skip
EXPECTED_SCORES = {
    ("captions", "validate"): (
        "val/bleu-4 val/cider-d val/correctness val_teacher_forced/lift val/loss"
    ),
    ("captions", "test"): (
        "test/cider-d teacher_forced/correctness shuffled/cider-d"
        " shuffled_teacher_forced/pointing_game untrained_teacher_forced/lift untrained/cider-d"
        " test/lift teacher_forced/num_phrases"
    ),
    ("questions", "test"): (
        "test/mean_accuracy test/loss test/off_type_answers"
        " test/hop_2_step_1_mass test/other_image_accuracy"
    ),
    ("masks", "test"): "test/miou test/dice novel/dice novel/loss",
    ("glimpses", "test"): "test/error test/error_random test/error_averaged_2x3_glimpses test/loss",
    ("shapes", "test"): "test/accuracy test/worst_class_accuracy test/calibration_error test/loss",
    ("scenes", "test"): (
        "test/caption_accuracy novel/caption_accuracy teacher_forced/correctness"
        " shuffled_teacher_forced/lift shuffled/caption_accuracy"
    ),
}
EXPECTED_NOTES = {
    ("masks", "test"): "test_classes.json novel_classes.json",
    ("glimpses", "test"): "test_error_per_glimpse.json",
}


def fits(folder: str, names: tuple[str, ...], processes: int) -> list[list[str]]:
    """Return the commands that train tasks, with each batch split over processes."""
    starts = {"critical": ["--init_from", "single/captions/checkpoints/last.ckpt"]}
    steps = {"scenes": ["--trainer.max_steps", "2"]}
    return [
        [
            *["fit", "--config", f"{name}.yaml", "--run", f"{folder}/{name}"],
            *["--data.batch_size", str(BATCHES.get(name, 6) // processes)],
            *starts.get(name, []),
            *steps.get(name, []),
        ]
        for name in names
    ]


def scorings(folder: str, scored: tuple[tuple[str, str], ...]) -> list[list[str]]:
    """Return the commands that score the checkpoints of the single process."""
    return [
        [
            *[word, "--config", f"{name}.yaml", "--run", f"{folder}/scored/{name}"],
            *["--ckpt_path", f"single/{name}/checkpoints/last.ckpt"],
        ]
        for name, word in scored
    ]


@pytest.fixture(
    scope="module",
    params=[QUICK, pytest.param(MORE, marks=pytest.mark.slow)],
    ids=["quick", "more"],
)
def tasks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedTasks:
    folder = tmp_path_factory.mktemp("processes")
    write_task_configs(folder)
    _, trained, scored = request.param
    alone = (*trained, *sorted({name for name, _ in scored} - set(trained)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["visattn"])
        patch.setenv("VISATTN_TRUST_MODULES", "training_log")
        run_commands([*fits("single", alone, 1), *scorings("single", scored)])
        run_on_two_ranks([*fits("two", trained, 2), *scorings("two", scored)], folder)
    return TrainedTasks(folder, trained, scored)


def test_two_processes_share_each_batch(tasks: TrainedTasks) -> None:
    for name in tasks.trained:
        single, *two = (diary["trained"] for diary in tasks.diaries(name))
        assert len(single) >= 4, name
        for whole, half, other in zip(single, *two, strict=True):
            assert len(half) == len(other) == BATCHES.get(name, 6) // 2, name
            assert sorted(half + other) == sorted(whole), name


def test_losses_match_a_single_process(tasks: TrainedTasks) -> None:
    for name in tasks.trained:
        single, first, second = (diary["loss"] for diary in tasks.diaries(name))
        losses = [sum(pair) / 2 for pair in zip(first, second, strict=True)]
        assert losses == pytest.approx(single, rel=1e-5, abs=1e-5), name
        assert first != pytest.approx(second, rel=1e-3), name


def test_weights_match_a_single_process(tasks: TrainedTasks) -> None:
    for name in tasks.trained:
        _, first, second = (diary["weights"] for diary in tasks.diaries(name))
        assert first == second, name
        single, two = (tasks.weights(folder, name) for folder in ("single", "two"))
        assert single.keys() == two.keys(), name
        differences = {
            key: float((two[key] - value).abs().max())
            for key, value in single.items()
            if not key.endswith("attention.key.bias")  # no gradient but rounding, which Adam scales
        }
        assert max(differences.values()) < 1e-5, (name, differences)


def test_validation_samples_are_counted_once(tasks: TrainedTasks) -> None:
    for name in tasks.trained:
        single, first, second = (
            [sample for batch in diary["validated"] for sample in batch]
            for diary in tasks.diaries(name)
        )
        assert len(single) == 2 * 11, name
        assert abs(len(first) - len(second)) == 2, name
        assert sorted(first + second) == sorted(single), name


def test_validation_scores_match_a_single_process(tasks: TrainedTasks) -> None:
    for name in tasks.trained:
        single, *two = (diary["scores"] for diary in tasks.diaries(name))
        assert len(single) == 2, name
        for both in two:
            for alone, scores in zip(single, both, strict=True):
                assert scores == pytest.approx(alone, rel=1e-4, abs=1e-5, nan_ok=True), name


def test_eleven_samples_have_the_same_scores_on_two_processes(tasks: TrainedTasks) -> None:
    for name, word in tasks.scored:
        single, two = (tasks.scores(folder, name, word) for folder in ("single", "two"))
        assert single.keys() == two.keys(), name
        assert set(EXPECTED_SCORES.get((name, word), "").split()) <= single.keys(), name
        assert two == pytest.approx(single, rel=1e-6, abs=1e-7, nan_ok=True), name


def test_notes_are_those_of_all_processes(tasks: TrainedTasks) -> None:
    for name, word in tasks.scored:
        files = sorted((tasks.folder / "single" / "scored" / name).glob("*.json"))
        notes = {
            file.name: flat(json.loads(file.read_text()))
            for file in files
            # Words are in an order of their own; the record of a run has dates.
            if not file.name.endswith(("_captions.json", "run.json"))
        }
        two = tasks.folder / "two" / "scored" / name
        for file, values in notes.items():
            others = flat(json.loads((two / file).read_text()))
            assert others == pytest.approx(values, rel=1e-6, abs=1e-7, nan_ok=True), (name, file)
        if (name, word) in EXPECTED_NOTES:
            assert {*EXPECTED_NOTES[name, word].split()} <= notes.keys(), name


def flat(value: Any, path: str = "") -> dict[str, float]:
    """Return the numbers of nested lists and mappings by their place; 0 by place and word."""
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: v for key, part in items for place, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, str):
        return {f"{path}: {value}": 0.0}
    return {path: math.nan if value is None else value}


def test_each_photo_has_one_caption(tasks: TrainedTasks) -> None:
    for name, word in tasks.scored:
        if name == "captions":
            key = "val" if word == "validate" else "test"
            path = tasks.folder / "two" / "scored" / name / f"{key}_captions.json"
            captions = json.loads(path.read_text())
            assert len(captions) == len({record["image_id"] for record in captions}) == 11


@pytest.mark.slow
@pytest.mark.parametrize("command", ["visattn", "-m visattn", "torchrun"])
def test_each_way_to_start_two_processes(command: str, tmp_path: Path) -> None:
    write_task_configs(tmp_path)
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node 2 -m -- visattn"
    starts = {
        "visattn": [str(Path(sys.executable).parent / "visattn")],
        "torchrun": [sys.executable, *torchrun.split()],
    }
    start = starts.get(command, [sys.executable, *command.split()])
    words = ["fit", "--config", "digits.yaml", "--data.batch_size", "3", "--run", "run"]
    ran = subprocess.run(
        [*start, *words, *TWO_RANKS],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert {path.name for path in (tmp_path / "run" / "diary").iterdir()} == {"0.json", "1.json"}
