"""Runs that are killed, stopped, spoilt or out of space, and go on as if nothing had been."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_runs import TASKS, write_broken_runs
from forked_runs import ForkedRuns, environment_of_runs
from small_disks import needs_small_disk, small_disk
from torch import Tensor

Run = Callable[..., tuple[list[int], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("broken")
    write_broken_runs(made)
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[Run]:
    """Run `fit` for a task, in a folder of a name; it saves every second step."""
    forked = ForkedRuns()

    def told(task: str, name: str, *words: str, **asked: Any) -> tuple[list[int], str]:
        words = ("fit", "--config", f"{task}.yaml", "--run", name, "--save_steps", "2", *words)
        return forked.run(folder, *words, **asked)

    yield told
    forked.close()


@pytest.fixture(scope="module")
def whole(folder: Path, run: Run) -> Path:
    """A run of the classifier that nothing breaks."""
    codes, said = run("classes", "whole")
    assert codes == [0], said
    return folder / "whole"


def kept(run: Path, name: str) -> dict[str, Any]:
    """All that a checkpoint keeps but the callbacks' own state, which knows its folder."""
    saved = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
    return {key: value for key, value in saved.items() if key != "callbacks"}


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of what is not equal to the last bit."""
    if isinstance(one, Tensor):
        return [] if torch.equal(one, other) else [name]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{name}: {one.keys() ^ other.keys()}"]
        return [told for key in one for told in differences(one[key], other[key], f"{name}/{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [name]
        pairs = enumerate(zip(one, other, strict=True))
        return [told for key, pair in pairs for told in differences(*pair, f"{name}/{key}")]
    return [] if one == other else [name]


def assert_same(one: Path, other: Path) -> None:
    for name in ("last", "best"):
        assert differences(kept(one, name), kept(other, name)) == []


LAST = ("--ckpt_path", "last")


def test_killed_runs_end_as_the_one_that_was_not(whole: Path, run: Run, folder: Path) -> None:
    """The same command each time: afresh, from the middle of an epoch, validated once more."""
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


def test_stopped_runs_save_and_say_so_with_their_exit_code(
    whole: Path, run: Run, folder: Path
) -> None:
    for signal, code in (("term:0", 143), ("int:2", 130), ("term_validation:3", 143)):
        codes, said = run("classes", "stopped", *LAST, BREAK=signal)
        assert codes == [code], said
        assert "the same command with --ckpt_path last and --run stopped goes on" in said
        assert "Traceback" not in said
    assert run("classes", "stopped", *LAST)[0] == [0]
    assert_same(whole, folder / "stopped")


def test_damaged_checkpoints_are_passed_over_in_words(whole: Path, run: Run, folder: Path) -> None:
    broken = folder / "damaged" / "checkpoints"
    assert run("classes", "damaged", *LAST, BREAK="end:6")[0] == [-9]
    last = broken / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    codes, said = run("classes", "damaged", *LAST)
    assert codes == [0]
    assert re.search(r"last\.ckpt cannot be used: .*is damaged or no checkpoint", said)
    assert "damaged/checkpoints/last.ckpt is kept as damaged/checkpoints/last.ckpt.damaged" in said
    assert "damaged goes on from damaged/checkpoints/best.ckpt" in said
    assert_same(whole, folder / "damaged")


def test_a_copied_run_keeps_its_best_and_its_last_step(whole: Path, run: Run, folder: Path) -> None:
    copied = folder / "copied" / "checkpoints"
    shutil.copytree(whole, copied.parent)  # with dates of today, which say nothing
    for name in ("last", "best"):  # no accuracy is better than 1
        saved = torch.load(copied / f"{name}.ckpt", weights_only=True)
        [key] = (key for key in saved["callbacks"] if key.startswith("ModelCheckpoint"))
        state = saved["callbacks"][key]
        assert state["dirpath"] == str(whole / "checkpoints")
        state["best_model_score"] = state["kth_value"] = torch.tensor(2.0)
        state["best_k_models"] = dict.fromkeys(state["best_k_models"], torch.tensor(2.0))
        torch.save(saved, copied / f"{name}.ckpt")
    best = (copied / "best.ckpt").read_bytes()
    (copied / "best.ckpt").touch()
    codes, said = run("classes", "copied", *LAST, "--trainer.max_epochs", "3")
    assert codes == [0], said
    assert "copied goes on from copied/checkpoints/last.ckpt" in said
    assert f"best checkpoint (val/accuracy 2.0000): {copied}/best.ckpt" in said
    assert (copied / "best.ckpt").read_bytes() == best
    assert kept(copied.parent, "last")["epoch"] == 2
    last = (copied / "last.ckpt").read_bytes()
    (copied / "best.ckpt").touch()
    codes, said = run("classes", "copied", "--ckpt_path", "copied/checkpoints/best.ckpt")
    assert codes == [1]
    assert "best.ckpt is of step" in said
    assert (copied / "last.ckpt").read_bytes() == last


@pytest.mark.slow
def test_where_nothing_is_whole_a_run_starts_afresh(whole: Path, run: Run, folder: Path) -> None:
    assert run("classes", "ruined", BREAK="end:6")[0] == [-9]
    kept_in = folder / "ruined" / "checkpoints"
    for file in kept_in.glob("*.ckpt"):  # one bit in the middle of the weights
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    codes, said = run("classes", "ruined", *LAST)
    assert codes == [0]
    assert "nothing in ruined can be gone on from" in said
    assert "ruined starts afresh" in said
    assert_same(whole, folder / "ruined")
    assert len(list(kept_in.glob("*.damaged"))) == 2


def test_bad_gradients_are_left_out_or_end_the_run(run: Run, folder: Path) -> None:
    codes, said = run("classes", "spoilt", BREAK="nan:6", NANS="99")
    assert codes == [0], said  # the last two steps of eight
    assert "2 of 8 steps were left out" in said
    codes, said = run("classes", "hopeless", "--bad_steps", "3", BREAK="nan:3", NANS="99")
    assert codes == [1]
    assert re.search(
        r"visattn: step 5: the gradients are not finite \(loss [\d.]+\); the first", said
    )
    assert "the first weights concerned are model." in said
    assert "That is 3 steps in a row, and training is stopped" in said
    assert "Traceback" not in said
    for name in ("spoilt", "hopeless"):
        for file in (folder / name / "checkpoints").glob("*.ckpt"):
            saved = torch.load(file, weights_only=True)
            for part in ("state_dict", "current_model_state"):
                assert all(bool(one.isfinite().all()) for one in saved[part].values())


@pytest.mark.slow
def test_a_run_that_is_stopped_among_bad_steps_counts_on(run: Run, folder: Path) -> None:
    words = ("--bad_steps", "3", *LAST)
    assert run("classes", "counted", *words, BREAK="nan:2", NANS="2")[0] == [0]
    shutil.rmtree(folder / "counted")
    assert run("classes", "counted", *words, BREAK="nan:3", NANS="99")[0] == [1]
    saved = torch.load(folder / "counted" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["callbacks"]["SkipNonFiniteSteps"]["row"] == 1


@needs_small_disk
def test_a_full_disk_is_named_and_what_was_saved_stays(run: Run, folder: Path) -> None:
    with small_disk(folder / "disk", 220) as disk:
        codes, said = run("classes", "disk/run", "--trainer.logger", "false")
        assert codes == [1], said
        assert re.search(r"visattn: .*no space left: \d+ kB are needed and \d+ kB are free", said)
        assert "disk/run/checkpoints" in said
        names = [path.name for path in (disk / "run" / "checkpoints").iterdir()]
        assert all(re.fullmatch(r"(last|best)\.ckpt", name) for name in names)
        for name in names:
            torch.load(disk / "run" / "checkpoints" / name, weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_goes_on_to_the_bit(
    task: str, processes: int, workers: int, run: Run, folder: Path
) -> None:
    words, name = ("--data.workers", str(workers)), f"{task}-{processes}-{workers}"
    asked = {"processes": processes}
    assert run(task, f"{name}-whole", *words, **asked)[0] == [0] * processes
    for broken in ("kill:1:0", f"kill:3:{processes - 1}", "end:4:0"):
        codes, _ = run(task, name, *words, *LAST, BREAK=broken, **asked)
        assert -9 in codes
    assert run(task, name, *words, *LAST, **asked)[0] == [0] * processes
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
def test_whatever_is_asked_of_the_trainer(words: str, run: Run, folder: Path) -> None:
    name = f"special-{list(SPECIAL.values()).index(words)}"
    assert run("classes", f"{name}-whole", *words.split())[0] == [0]
    for broken, code in (("kill:2", -9), ("end:3", -9), ("term:4", 143), ("end:5", -9)):
        assert run("classes", name, *words.split(), *LAST, BREAK=broken)[0] == [code]
    assert run("classes", name, *words.split(), *LAST)[0] == [0]
    one, other = (kept(folder / made, "last") for made in (f"{name}-whole", name))
    assert differences(one, other) == []


@pytest.fixture(scope="module")
def together(folder: Path, run: Run) -> Path:
    """A run of two processes that nothing breaks."""
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
    assert "launched goes on from launched/checkpoints/last.ckpt" in done.stderr
    assert_same(together, folder / "launched")
    assert "current_model_state" in kept(folder / "launched", "last")  # beside their average


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "code"), [("term", 143), ("int", 130)])
def test_processes_stop_together_whichever_was_told(
    signal: str, code: int, together: Path, run: Run, folder: Path
) -> None:
    codes, said = run("classes", signal, *LAST, processes=2, BREAK=f"{signal}:2:1")
    assert codes == [code, code], said
    assert run("classes", signal, *LAST, processes=2)[0] == [0, 0]
    assert_same(together, folder / signal)


@pytest.mark.slow
def test_torchrun_starts_a_run_again_where_it_was(together: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", "--max-restarts", "2", "-m", "--", "visattn"]
    command += ["fit", "--config", "classes.yaml", "--run", "elastic", "--save_steps", "2", *LAST]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**environment_of_runs(), "BREAK": "kill:3:1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert "elastic goes on from elastic/checkpoints/last.ckpt" in done.stderr
    assert_same(together, folder / "elastic")
