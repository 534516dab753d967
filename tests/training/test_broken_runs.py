"""Runs that are killed, stopped, diverge or fill the disk resume bit-exactly."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_runs import ForkedRuns, environment_of_runs
from interrupted_runs import TASKS, write_run_configs
from small_disks import needs_small_disk, small_disk
from torch import Tensor

Run = Callable[..., tuple[list[int], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("broken")
    write_run_configs(made)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    """Return a function that runs `fit` for a task, with a checkpoint every 2 steps."""
    forked = ForkedRuns()

    def run_fit(task: str, name: str, *words: str, **options: Any) -> tuple[list[int], str]:
        words = ("fit", "--config", f"{task}.yaml", "--run", name, "--save_steps", "2", *words)
        return forked.run(folder, *words, **options)

    yield run_fit
    forked.close()


@pytest.fixture(scope="module")
def whole(folder: Path, run: Run) -> Path:
    """A run of the classifier without interruption."""
    codes, output = run("classes", "whole")
    assert codes == [0], output
    return folder / "whole"


def kept(run: Path, name: str) -> dict[str, Any]:
    """Return a checkpoint without the states of callbacks, which depend on the folder."""
    saved = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return {key: value for key, value in saved.items() if key != "callbacks"}


def differences(first: Any, second: Any, name: str = "") -> list[str]:
    """Return the names of values that are not bit-identical."""
    if isinstance(first, Tensor):
        return [] if torch.equal(first, second) else [name]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{name}: {first.keys() ^ second.keys()}"]
        parts = [differences(first[key], second[key], f"{name}/{key}") for key in first]
        return [path for part in parts for path in part]
    if isinstance(first, list | tuple):
        if len(first) != len(second):
            return [name]
        pairs = enumerate(zip(first, second, strict=True))
        parts = [differences(*pair, f"{name}/{key}") for key, pair in pairs]
        return [path for part in parts for path in part]
    return [] if first == second else [name]


def assert_same(first: Path, second: Path) -> None:
    for name in ("last", "best"):
        assert differences(kept(first, name), kept(second, name)) == []


LAST = ("--ckpt_path", "last")


def test_killed_runs_resume_bit_exactly(whole: Path, run: Run, folder: Path) -> None:
    """The same command starts the run, resumes within an epoch, and repeats a validation."""
    for broken in ("kill:1", "validation:3", "writing:5"):
        assert run("classes", "killed", *LAST, BREAK=broken)[0] == [-9]
    assert not list((folder / "killed" / "checkpoints").glob("*.damaged"))
    assert run("classes", "killed", *LAST)[0] == [0]
    assert_same(whole, folder / "killed")
    left = {path.name for path in (folder / "killed" / "checkpoints").iterdir()}
    assert left == {"last.ckpt", "best.ckpt"}
    before = (folder / "killed" / "checkpoints" / "last.ckpt").read_bytes()
    assert run("classes", "killed", *LAST)[0] == [0]  # nothing is left to do
    assert (folder / "killed" / "checkpoints" / "last.ckpt").read_bytes() == before


def test_stopped_runs_save_and_exit_with_the_code_of_the_signal(
    whole: Path, run: Run, folder: Path
) -> None:
    for signal, code in (("term:0", 143), ("int:2", 130), ("term_validation:3", 143)):
        codes, output = run("classes", "stopped", *LAST, BREAK=signal)
        assert codes == [code], output
        assert "rerun the command with --ckpt_path last and --run stopped" in output
        assert "Traceback" not in output
    assert run("classes", "stopped", *LAST)[0] == [0]
    assert_same(whole, folder / "stopped")


def test_damaged_checkpoints_are_skipped_and_reported(whole: Path, run: Run, folder: Path) -> None:
    broken = folder / "damaged" / "checkpoints"
    assert run("classes", "damaged", *LAST, BREAK="end:6")[0] == [-9]
    last = broken / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    codes, output = run("classes", "damaged", *LAST)
    assert codes == [0]
    assert re.search(r"last\.ckpt cannot be used: it is damaged", output)
    assert (
        "damaged/checkpoints/last.ckpt is kept as damaged/checkpoints/last.ckpt.damaged" in output
    )
    assert "damaged resumes from damaged/checkpoints/best.ckpt" in output
    assert_same(whole, folder / "damaged")


def test_a_copied_run_keeps_its_best_and_its_last_step(whole: Path, run: Run, folder: Path) -> None:
    copied = folder / "copied" / "checkpoints"
    shutil.copytree(whole, copied.parent)  # with dates of today, which say nothing
    for name in ("last", "best"):  # no accuracy is better than 1
        saved = torch.load(copied / f"{name}.ckpt", weights_only=True)
        [key] = (key for key in saved["callbacks"] if key.startswith("BestCheckpoint"))
        state = saved["callbacks"][key]
        assert state["dirpath"] == str(whole / "checkpoints")
        state["best_model_score"] = state["kth_value"] = torch.tensor(2.0)
        state["best_k_models"] = dict.fromkeys(state["best_k_models"], torch.tensor(2.0))
        torch.save(saved, copied / f"{name}.ckpt")
    best = (copied / "best.ckpt").read_bytes()
    (copied / "best.ckpt").touch()
    codes, output = run("classes", "copied", *LAST, "--trainer.max_epochs", "3")
    assert codes == [0], output
    assert "copied resumes from copied/checkpoints/last.ckpt" in output
    assert f"best checkpoint (val/accuracy 2.0000): {copied}/best.ckpt" in output
    assert (copied / "best.ckpt").read_bytes() == best
    assert kept(copied.parent, "last")["epoch"] == 2
    last = (copied / "last.ckpt").read_bytes()
    (copied / "best.ckpt").touch()
    codes, output = run("classes", "copied", "--ckpt_path", "copied/checkpoints/best.ckpt")
    assert codes == [1]
    assert "best.ckpt is of step" in output
    assert (copied / "last.ckpt").read_bytes() == last


@pytest.mark.slow
def test_a_run_without_usable_checkpoints_starts_from_scratch(
    whole: Path, run: Run, folder: Path
) -> None:
    assert run("classes", "ruined", BREAK="end:6")[0] == [-9]
    kept_in = folder / "ruined" / "checkpoints"
    for file in kept_in.glob("*.ckpt"):  # one bit in a record, not in the padding between records
        content = bytearray(file.read_bytes())
        content[content.index(b"state_dict")] ^= 1
        file.write_bytes(content)
    codes, output = run("classes", "ruined", *LAST)
    assert codes == [0]
    assert "ruined holds no usable checkpoint" in output
    assert "ruined starts from scratch" in output
    assert_same(whole, folder / "ruined")
    assert len(list(kept_in.glob("*.damaged"))) == 2


def test_steps_with_nonfinite_gradients_are_skipped_or_end_the_run(run: Run, folder: Path) -> None:
    codes, output = run("classes", "spoilt", BREAK="nan:6", NANS="99")
    assert codes == [0], output  # the last two steps of eight
    assert "2 of 8 steps were skipped" in output
    codes, output = run(
        "classes", "hopeless", "--max_nonfinite_steps", "3", BREAK="nan:3", NANS="99"
    )
    assert codes == [1]
    assert re.search(
        r"visattn: step 5: the gradients are not finite \(loss [\d.]+\); first tensor: model\.",
        output,
    )
    assert "Training stops after 3 consecutive steps" in output
    assert "Traceback" not in output
    for name in ("spoilt", "hopeless"):
        for file in (folder / name / "checkpoints").glob("*.ckpt"):
            saved = torch.load(file, weights_only=True)
            for part in ("state_dict", "current_model_state"):
                assert all(bool(tensor.isfinite().all()) for tensor in saved[part].values())


@pytest.mark.slow
def test_a_resumed_run_continues_the_count_of_nonfinite_steps(run: Run, folder: Path) -> None:
    words = ("--max_nonfinite_steps", "3", *LAST)
    assert run("classes", "counted", *words, BREAK="nan:2", NANS="2")[0] == [0]
    shutil.rmtree(folder / "counted")
    assert run("classes", "counted", *words, BREAK="nan:3", NANS="99")[0] == [1]
    saved = torch.load(folder / "counted" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["callbacks"]["SkipNonFiniteSteps"]["consecutive"] == 1


@needs_small_disk
def test_a_full_disk_is_reported_and_older_checkpoints_stay(run: Run, folder: Path) -> None:
    with small_disk(folder / "disk", 220) as disk:
        codes, output = run("classes", "disk/run", "--trainer.logger", "false")
        assert codes == [1], output
        assert re.search(r"visattn: .*No space left on device", output)
        assert "disk/run/checkpoints" in output
        names = [path.name for path in (disk / "run" / "checkpoints").iterdir()]
        assert all(re.fullmatch(r"(last|best)\.ckpt", name) for name in names)
        for name in names:
            torch.load(disk / "run" / "checkpoints" / name, weights_only=True)
        (disk / "more").write_bytes(bytes(shutil.disk_usage(disk).free))
        codes, output = run("classes", "disk/logged")  # its config and its logs are not atomic
        assert codes == [1], output
        assert re.search(r"visattn: .*No space left on device", output)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_resumes_bit_exactly(
    task: str, processes: int, workers: int, run: Run, folder: Path
) -> None:
    words, name = ("--data.num_workers", str(workers)), f"{task}-{processes}-{workers}"
    options = {"processes": processes}
    assert run(task, f"{name}-whole", *words, **options)[0] == [0] * processes
    last = 4 if processes == 1 else 3  # two processes have half as many batches
    for broken in ("kill:1:0", f"kill:3:{processes - 1}", f"end:{last}:0"):
        codes, output = run(task, name, *words, *LAST, BREAK=broken, **options)
        assert -9 in codes, (broken, output)
    assert run(task, name, *words, *LAST, **options)[0] == [0] * processes
    assert_same(folder / f"{name}-whole", folder / name)


SPECIAL = {
    "blind": "--trainer.limit_val_batches 0 --trainer.max_steps 9 --trainer.max_epochs 3",
    "limited": "--trainer.limit_train_batches 3 --trainer.limit_val_batches 0",
    "often validated": "--trainer.val_check_interval 2",
    "seldom validated": "--trainer.check_val_every_n_epoch 2 --trainer.max_epochs 4",
    "accumulated": "--trainer.accumulate_grad_batches 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", SPECIAL.values(), ids=SPECIAL)
def test_runs_with_other_trainer_options_resume_bit_exactly(
    words: str, run: Run, folder: Path
) -> None:
    name = f"special-{list(SPECIAL.values()).index(words)}"
    assert run("classes", f"{name}-whole", *words.split())[0] == [0]
    for broken, code in (("kill:2", -9), ("end:3", -9), ("term:4", 143), ("end:5", -9)):
        assert run("classes", name, *words.split(), *LAST, BREAK=broken)[0] == [code]
    assert run("classes", name, *words.split(), *LAST)[0] == [0]
    whole, resumed = kept(folder / f"{name}-whole", "last"), kept(folder / name, "last")
    assert differences(whole, resumed) == []


@pytest.fixture(scope="module")
def together(folder: Path, run: Run) -> Path:
    """A run on two processes without interruption."""
    assert run("classes", "together", processes=2)[0] == [0, 0]
    return folder / "together"


@pytest.mark.slow
def test_the_command_starts_both_processes_and_averages_their_weights(
    together: Path, folder: Path
) -> None:
    command = [sys.executable, "-m", "visattn", "fit", "--config", "classes.yaml", "--save_steps"]
    command += ["2", "--run", "launched", "--trainer.devices", "2", *LAST]
    environment = environment_of_runs()
    for broken, code in (("kill:3:1", 1), ("none:0", 0)):
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environment, "BREAK": broken},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == code, done.stderr
    assert "launched resumes from launched/checkpoints/last.ckpt" in done.stderr
    assert_same(together, folder / "launched")
    assert "current_model_state" in kept(folder / "launched", "last")  # beside their average


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "code"), [("term", 143), ("int", 130)])
def test_processes_stop_together_whichever_got_the_signal(
    signal: str, code: int, together: Path, run: Run, folder: Path
) -> None:
    codes, output = run("classes", signal, *LAST, processes=2, BREAK=f"{signal}:2:1")
    assert codes == [code, code], output
    assert run("classes", signal, *LAST, processes=2)[0] == [0, 0]
    assert_same(together, folder / signal)
