"""Runs of every task resume to the bit: from any checkpoint, after signals, and when killed."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import forked_run
from task_runs import FAULTS, TASKS, write_runs
from torch import Tensor

from visattn.cli import main

pytestmark = [
    pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
Fit = Callable[..., int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("resumed")
    write_runs(made, FAULTS)
    return made


@pytest.fixture
def fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fit]:
    """Return a function that runs `fit` for a task, with a fault, and returns the exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "task_runs")

    def run(task: str, name: str, *words: str, fault: str = "none:0") -> int:
        monkeypatch.setenv("BREAK", fault)
        return main(["fit", "--config", f"{task}.yaml", "--run", name, *words])

    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # as by a shell behind &
    yield run
    signal.signal(signal.SIGINT, ignored)


def saved(run: Path, name: str = "last") -> dict[str, Any]:
    """Return a checkpoint without the states of callbacks, which name the folder.

    Of validations Lightning counts the batches since the start or an epoch.
    """
    content = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
    del content["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    return {key: value for key, value in content.items() if key != "callbacks"}


def differences(first: Any, second: Any, name: str = "") -> list[str]:
    """Return the names of values that are not bit-identical."""
    if isinstance(first, Tensor):
        return [] if torch.equal(first, second) else [name]
    if isinstance(first, dict) and first.keys() == second.keys():
        return [
            part for key in first for part in differences(first[key], second[key], f"{name}/{key}")
        ]
    if isinstance(first, list | tuple) and len(first) == len(second):
        pairs = enumerate(zip(first, second, strict=True))
        return [part for key, pair in pairs for part in differences(*pair, f"{name}/{key}")]
    return [] if first == second else [f"{name}: {first} {second}"]


SLOW = pytest.mark.slow
LAST = ("--ckpt_path", "last")


def test_a_run_of_two_steps_resumes_to_the_bit(fit: Fit, folder: Path) -> None:
    """All else here is slow."""
    words = ("--trainer.max_steps", "2", "--trainer.limit_val_batches", "1")
    assert fit("classes", "two", *words) == 0
    assert fit("classes", "one", *words, fault="term:0") == 143
    assert saved(folder / "one")["global_step"] == 1
    assert fit("classes", "one", *words, *LAST) == 0
    assert differences(saved(folder / "two"), saved(folder / "one")) == []


@SLOW
@pytest.mark.parametrize("task", TASKS)
def test_every_task_resumes_to_the_bit(task: str, fit: Fit, folder: Path) -> None:
    """After a batch, a validation within an epoch, and an epoch."""
    words = ("--trainer.val_check_interval", "0.5")
    assert fit(task, f"{task}-whole", *words, fault="keep:0") == 0
    kept = sorted((folder / f"{task}-whole" / "kept").glob("*.ckpt"))
    first = {file.stem.partition("-")[0]: file for file in reversed(kept)}
    assert first.keys() == {"batch", "validation", "epoch"}
    for kind, file in first.items():
        assert fit(task, f"{task}-{kind}", *words, "--ckpt_path", str(file)) == 0
        whole, resumed = saved(folder / f"{task}-whole"), saved(folder / f"{task}-{kind}")
        assert differences(whole, resumed) == [], kind
        assert not list((folder / f"{task}-{kind}").glob(".*"))


SPECIAL = {
    "by steps": "--trainer.max_steps 9 --trainer.max_epochs 3",
    "blind": "--trainer.limit_val_batches 0 --trainer.max_steps 9 --trainer.max_epochs 3",
    "limited": "--trainer.limit_train_batches 3 --trainer.limit_val_batches 0",
    "seldom validated": "--trainer.check_val_every_n_epoch 2 --trainer.max_epochs 4",
    "accumulated": "--trainer.accumulate_grad_batches 2",
}


@SLOW
@pytest.mark.parametrize("words", SPECIAL.values(), ids=SPECIAL)
def test_runs_with_other_trainer_options_resume_to_the_bit(
    words: str, fit: Fit, folder: Path
) -> None:
    """Each from the first state of a kind, and with a signal in batches 2 and 5."""
    name = f"special-{list(SPECIAL.values()).index(words)}"
    assert fit("classes", f"{name}-whole", *words.split(), fault="keep:0") == 0
    whole = saved(folder / f"{name}-whole")
    kept = sorted((folder / f"{name}-whole" / "kept").glob("*.ckpt"))
    kept = [file for file in kept if torch.load(file)["global_step"] < whole["global_step"]]
    for file in kept[::3]:
        run = f"{name}-{file.stem}"
        assert fit("classes", run, *words.split(), "--ckpt_path", str(file)) == 0
        assert differences(whole, saved(folder / run)) == [], file.stem
    for fault in ("term:2", "term:5"):
        assert fit("classes", name, *words.split(), *LAST, fault=fault) == 143
    assert fit("classes", name, *words.split(), *LAST) == 0
    assert differences(whole, saved(folder / name)) == []


@SLOW
def test_a_stopped_run_resumes_where_it_was(fit: Fit, folder: Path) -> None:
    """After SIGTERM and Ctrl-C in a batch and in a validation; best.ckpt stays the same, too."""
    assert fit("classes", "whole") == 0
    for fault in ("term:0", "int:2", "term_validation:3", "term:5"):
        assert fit("classes", "stopped", *LAST, fault=fault) == 143, fault
    assert fit("classes", "stopped", *LAST) == 0
    for name in ("last", "best"):
        assert differences(saved(folder / "whole", name), saved(folder / "stopped", name)) == []
    before = saved(folder / "stopped")
    assert fit("classes", "stopped", *LAST) == 0  # nothing is left to do
    assert differences(before, saved(folder / "stopped")) == []


@SLOW
def test_a_run_goes_on_with_a_later_end(fit: Fit, folder: Path) -> None:
    """The batches that max_steps left of an epoch are read; the rate follows the new end."""
    steps = "--trainer.max_steps"
    constant = ("--model.optim.schedule", "trapezoid", "--model.optim.decay_start", "1")
    assert fit("classes", "at-once", steps, "7", *constant) == 0
    for end in ("2", "4", "7"):
        assert fit("classes", "in-parts", steps, end, *constant, "--ckpt_path", "last") == 0
    whole, parts = saved(folder / "at-once"), saved(folder / "in-parts")
    for part in ("state_dict", "current_model_state", "optimizer_states"):
        assert differences(whole[part], parts[part], part) == []


@SLOW
def test_a_moved_run_keeps_its_best(fit: Fit, folder: Path) -> None:
    assert fit("classes", "before", "--trainer.max_epochs", "1") == 0
    shutil.move(folder / "before", folder / "after")
    files = {name: folder / "after" / "checkpoints" / f"{name}.ckpt" for name in ("last", "best")}
    content = torch.load(files["last"], weights_only=True)
    [key] = (key for key in content["callbacks"] if key.startswith("BestCheckpoint"))
    content["callbacks"][key]["best_model_score"] = torch.tensor(2.0)  # no accuracy is better
    content["callbacks"][key]["kth_value"] = torch.tensor(2.0)
    torch.save(content, files["last"])
    best = files["best"].read_bytes()
    assert fit("classes", "after", "--ckpt_path", "last") == 0
    assert files["best"].read_bytes() == best
    assert saved(folder / "after")["epoch"] == 1


@SLOW
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_killed_runs_resume_to_the_bit(task: str, processes: int, folder: Path) -> None:
    """Within an epoch, in a validation, and while a checkpoint is written."""

    def run(name: str, **fault: Any) -> list[int]:
        words = ("fit", "--config", f"{task}.yaml", "--run", name, "--ckpt_path", "last")
        return forked_run(folder, *words, "--save_minutes", "1e-9", processes=processes, **fault)[0]

    whole, name = f"{task}-{processes}-unbroken", f"{task}-{processes}-killed"
    assert run(whole) == [0] * processes
    faults = ("kill:1:0", f"validation:1:{processes - 1}", "writing:2:0", "end:3:0")
    assert sum(-9 in run(name, BREAK=fault) for fault in faults) > 2  # some have three batches only
    assert run(name) == [0] * processes
    assert differences(saved(folder / whole), saved(folder / name)) == []
    assert {path.name for path in (folder / name / "checkpoints").iterdir()} == {
        "last.ckpt",
        "best.ckpt",
    }
