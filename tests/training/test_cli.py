"""`visattn fit`, `validate` and `test` end to end: run folders, resuming, dry runs."""

import csv
import json
import re
import shlex
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.datasets
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from visattn.cli import main
from visattn.models.saving import load
from visattn.training.command import find_config, with_configs, with_run

Capsys = pytest.CaptureFixture[str]


def last_of(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


def logged(run: Path, number: int, name: str) -> list[dict[str, str]]:
    """Return the rows of a session's table that have a value of this name."""
    with (run / f"csv-{number}" / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row[name]]


def test_a_run_leaves_config_checkpoints_logs_and_record(run: Path) -> None:
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["captioner"]["init_args"]["hidden_size"] == 11
    assert "data_info" not in config["model"]["init_args"]
    assert [row["step"] for row in logged(run, 1, "train/loss")] == ["0", "1"]
    assert len(logged(run, 1, "val/caption_accuracy")) == 2
    [events] = run.glob("events.*")
    board = EventAccumulator(str(events)).Reload()
    assert {"train/loss", "val/loss"} <= set(board.Tags()["scalars"])
    panels = board.Images("captions/0")
    assert len(panels) == 2  # after each validation
    assert Image.open(BytesIO(panels[-1].encoded_image_string)).width == 480
    saved, best = last_of(run), torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    assert saved["visattn"]["model"]["class"] == "ShowAttendTell"
    assert "hyper_parameters" not in saved
    # The second validation was no better.
    assert (saved["global_step"], best["global_step"]) == (2, 1)
    record = json.loads((run / "run.json").read_text())
    assert (record["config"], record["seed"], record["fit"]["steps"]) == ("tiny", 42, 2)
    assert record["fit"]["best"] == {"val/caption_accuracy": 0.0}


def test_test_scores_every_split_and_control(tiny: Path, copy: Path) -> None:
    assert main(["test", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    folder = copy.parent.parent
    scores = json.loads((folder / "test.json").read_text())
    words = {"caption_accuracy", "parsed"}
    maps = {"pointing_game", "correctness", "lift", "gate_auc"}
    assert scores.pop("chance").startswith("test: 11 of 11 images have the caption")
    by_split: dict[str, set[str]] = {}
    for name in scores:
        by_split.setdefault(name.split("/")[0], set()).add(name.split("/")[1])
    both, controls = dict.fromkeys(("test", "novel"), words | maps), ("shuffled", "untrained")
    reference = ("", "shuffled_", "untrained_")
    taught = {f"{control}teacher_forced": maps for control in reference}
    assert by_split == {**both, **dict.fromkeys(controls, words), **taught}
    uniform = scores["teacher_forced/correctness"] - scores["teacher_forced/lift"]
    assert uniform == pytest.approx(0.074, abs=0.02)
    assert abs(scores["untrained_teacher_forced/lift"]) < 0.02
    record = json.loads((folder / "run.json").read_text())["test"]
    assert (record["checkpoint"], record["step"]) == ("best", 1)
    assert record["images"] == {"test": 11, "novel": 11}
    assert not (folder / "config.yaml").exists()


def test_validate_writes_what_fit_logged_and_reads_hard_attention(
    tiny: Path, copy: Path, run: Path, capsys: Capsys
) -> None:
    """Soft weights are scored at the most probable places, too."""
    losses: list[float] = []
    for places in (["soft"], ["hard", "--model.captioner.places", "expectation"], ["hard"]):
        options = ["--model.captioner.attention", *places]
        assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy), *options]) == 0
        scores = json.loads((copy.parent.parent / "validate.json").read_text())
        losses.append(scores["val/loss"])
        assert re.search(rf"val/loss +{losses[-1]:.4f}\n", capsys.readouterr().out)
    assert losses[:2] == pytest.approx([float(logged(run, 1, "val/loss")[0]["val/loss"])] * 2)
    assert losses[2] != pytest.approx(losses[0], rel=1e-5)


def test_ckpt_path_last_resumes_or_starts_a_run_with_the_options_of_today(
    tiny: Path, tmp_path: Path
) -> None:
    rate = "--model.optim.optimizer.lr"
    words = ["fit", "--config", str(tiny), "--ckpt_path", "last", "--seed_everything", "1"]
    words += ["--model.optim.optimizer", "torch.optim.AdamW"]
    assert main([*words, rate, "4e-3", "--trainer.max_epochs", "1"]) == 0
    folder = tmp_path / "runs" / "tiny" / "1"
    assert last_of(folder)["global_step"] == 1
    later = [*words, rate, "1e-3", "--model.optim.optimizer.weight_decay", "0.5"]
    later += ["--model.optim.lr_mults", "{encoder: 0.5}", "--run", str(folder)]
    assert main(later) == 0
    saved = last_of(folder)
    assert saved["global_step"] == 2
    groups = saved["optimizer_states"][0]["param_groups"]
    assert {group["initial_lr"] for group in groups} == {1e-3, 0.5e-3}
    assert {group["weight_decay"] for group in groups} == {0.5}
    assert saved["lr_schedulers"][0]["base_lrs"] == [group["initial_lr"] for group in groups]
    assert {path.name for path in folder.glob("config*")} == {"config.yaml", "config-2.yaml"}
    config = yaml.safe_load((folder / "config-2.yaml").read_text())
    assert (config["trainer"]["max_epochs"], config["data"]["init_args"]["seed"]) == (2, 1)
    assert [row["step"] for row in logged(folder, 2, "train/loss")] == ["1"]
    assert [path.name for path in folder.parent.iterdir()] == ["1"]
    record = json.loads((folder / "run.json").read_text())
    assert (record["fit"]["sessions"], record["fit"]["steps"]) == (2, 2)


def test_a_run_starts_from_the_weights_of_another(tiny: Path, copy: Path, tmp_path: Path) -> None:
    start, folder = tmp_path / "start.ckpt", tmp_path / "run"
    copy.rename(start)
    words = ["fit", "--config", str(tiny), "--run", str(folder), "--init_from", str(start)]
    rest = ["--model.optim.optimizer", "torch.optim.SGD", "--model.optim.optimizer.lr", "0"]
    assert main([*words, *rest, "--trainer.max_steps", "1"]) == 0
    weights = dict(load(start).named_parameters())
    for name, value in load(folder / "checkpoints" / "last.ckpt").named_parameters():
        assert torch.equal(value, weights[name]), name
    # The start is read once: neither a resumed run nor its scores need it any more.
    start.unlink()
    assert main([*words, *rest, "--ckpt_path", "last", "--trainer.max_steps", "2"]) == 0
    assert main(["validate", "--run", str(folder)]) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`?.fit.ckpt_path=")
def test_what_lightnings_users_write_works(tiny: Path, tmp_path: Path) -> None:
    """One callback, no end but a time, overfitted batches, accumulation that changes."""
    for number, words in enumerate((
        "--trainer.callbacks LearningRateMonitor",
        "--trainer.max_epochs -1 --trainer.max_steps -1 --trainer.max_time 00:00:00:01",
        "--trainer.overfit_batches 1",
        "--trainer.callbacks+=GradientAccumulationScheduler"
        " --trainer.callbacks.scheduling '{0: 1, 1: 2}'",
        "--trainer.callbacks+=OnExceptionCheckpoint --trainer.callbacks.dirpath saved",
        "--trainer.callbacks+=LearningRateFinder --trainer.callbacks.num_training_steps 3",
        "--trainer.callbacks+=ModelCheckpoint --trainer.limit_val_batches 0",
    )):  # fmt: skip
        run = ["--run", str(tmp_path / str(number))]
        assert main(["fit", "--config", str(tiny), *run, *shlex.split(words)]) == 0, words
        assert last_of(tmp_path / str(number))["global_step"] > 1, words


def test_print_config_shows_every_default_and_null_is_none(tiny: Path, capsys: Capsys) -> None:
    nulls = ["--model.monitor", "null", "--data.phrases", "null", "--data.source.seed", "null"]
    nulls += ["--model.optim.final_fraction", "null", "--data.resize_mode", "null"]
    assert main(["fit", "--config", str(tiny), *nulls, "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    task, data = printed["model"]["init_args"], printed["data"]["init_args"]
    assert task["doubly_stochastic_weight"] == 0.0
    assert task["captioner"]["init_args"]["dropout"] == 0.1
    none = (task["monitor"], task["optim"]["final_fraction"], data["phrases"], data["resize_mode"])
    assert none == (None,) * 4
    assert data["source"]["init_args"]["seed"] is None


def test_help_lists_the_options_of_any_class_of_a_config(capsys: Capsys) -> None:
    for words, lines in (
        ("--model.help CaptioningTask", (
            "  --model.captioner CAPTIONER", "(required, type: Callable[[list[str]], Captioner]",
            "  --model.doubly_stochastic_weight DOUBLY", "(type: float, default: 0.0)",
            "visattn.models.KnowingWhenToLook", "  --model.optim.warmup_steps WARMUP_STEPS")),
        ("--model.classifier.help=TimmClassifier", (
            "timm model with a new head and attention blocks inserted at chosen",
            "  --model.classifier.name NAME", "Name of the timm model. (required, type: str)")),
        ("--data.source.help ClassFolders", ("  --data.source.root ROOT",)),
    ):  # fmt: skip
        assert main(["fit", *words.split()]) == 0
        printed = capsys.readouterr().out
        for line in lines:
            assert line in printed, words
        assert "data_info" not in printed


def test_a_dry_run_writes_and_downloads_nothing(
    tiny: Path, run: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the config of an older version, whose options have left."""
    old = yaml.safe_load((run / "config.yaml").read_text())
    old |= {"save_steps": 0, "max_nonfinite_steps": 10, "compile": "no", "timeout": None}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({**old, "run": None}))
    before = {path: path.stat().st_mtime_ns for path in (*tmp_path.rglob("*"), *run.rglob("*"))}
    assert main(["fit", "--config", "old.yaml", "--dry-run"]) == 0
    for command in ("validate", "test"):
        assert main([command, "--run", str(run), "--dry-run", "--data.batch_size", "3"]) == 0
        error = capsys.readouterr().err
        assert f"{command} uses {run}/config.yaml and {run}/checkpoints/best.ckpt" in error
    downloads: list[object] = []
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", downloads.append)
    mnist = ["--data", "ClassificationData", "--data.source", "TorchvisionImages"]
    mnist += ["--data.source.dataset", "MNIST", "--data.source.root", "."]
    words = ["fit", "--config", str(tiny), *mnist, "--data.source.download", "true", "--dry-run"]
    assert main(words) == 1
    assert downloads == []
    after = {path: path.stat().st_mtime_ns for path in (*tmp_path.rglob("*"), *run.rglob("*"))}
    assert after == before


def test_arguments_are_completed_by_configs_and_runs(run: Path) -> None:
    assert with_configs(["--config=scenes_demo"]) == [f"--config={find_config('scenes_demo')}"]
    Path("scenes_demo").touch()  # a file of the working folder goes first
    assert with_configs(["-c", "scenes_demo"]) == ["-c", "scenes_demo"]
    best = str(run / "checkpoints" / "best.ckpt")
    words = ["--run", str(run), "--data.source.test", "3"]
    config = ["--config", str(run / "config.yaml")]
    assert with_run("test", words) == [*config, *words, "--run", str(run), "--ckpt_path", best]
    assert with_run("test", [f"--ckpt_path={best}"])[-1] == best
    assert with_run("fit", words) == words
