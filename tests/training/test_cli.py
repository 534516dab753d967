"""`visattn fit`, `validate` and `test` end to end: run folders, refusals, resuming, dry runs."""

import csv
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.datasets
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.cli import LightningCLI
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from visattn.cli import main
from visattn.data.scenes.dataset import Scenes
from visattn.io.trusted_modules import TRUSTED_MODULES, user_trusted_modules
from visattn.models.config import model_config
from visattn.models.saving import load
from visattn.pipelines.captioning import caption
from visattn.training.cli import trust_modules
from visattn.training.command import find_config, with_configs, with_run

Capsys = pytest.CaptureFixture[str]


def last_of(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


def test_a_run_leaves_config_checkpoints_logs_and_record(run: Path) -> None:
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["captioner"]["init_args"]["hidden_size"] == 11
    assert "data_info" not in config["model"]["init_args"]
    with (run / "csv-1" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["train/loss"]] == ["0", "1", "2", "3"]
    assert len([row for row in rows if row["val/caption_accuracy"]]) == 2
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
    assert (saved["global_step"], best["global_step"]) == (4, 2)
    record = json.loads((run / "run.json").read_text())
    assert (record["config"], record["seed"], record["fit"]["steps"]) == ("tiny", 42, 4)
    assert record["fit"]["best"] == {"val/caption_accuracy": 0.0}


def test_export_then_load_then_caption(run: Path, tmp_path: Path, capsys: Capsys) -> None:
    checkpoint, file = run / "checkpoints" / "best.ckpt", tmp_path / "m.safetensors"
    assert main(["export", str(checkpoint), "--out", str(file)]) == 0
    model: Any = load(file)
    trained = load(checkpoint)
    assert model_config(model) == model_config(trained)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])
    pixels = Scenes(3, size=24, split="validation").image(0).permute(1, 2, 0).numpy()
    (said,) = caption(model, pixels)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    capsys.readouterr()
    out = ["--out", str(tmp_path / "out")]
    assert main(["caption", str(tmp_path / "scene.png"), "--model", str(file), *out]) == 0
    assert capsys.readouterr().out == f"scene\t{said.text}\n"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The best checkpoint, in a run of its own."""
    (tmp_path / "copy" / "checkpoints").mkdir(parents=True)
    path = tmp_path / "copy" / "checkpoints" / "best.ckpt"
    path.write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    return path


def test_test_scores_every_split_and_control(tiny: Path, copy: Path) -> None:
    assert main(["test", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    scores = json.loads((copy.parent.parent / "test.json").read_text())
    words, maps = (
        {"caption_accuracy", "parsed"},
        {"pointing_game", "correctness", "lift", "gate_auc"},
    )
    assert scores.pop("chance").startswith("test: 11 of 11 images have the caption")
    by_split: dict[str, set[str]] = {}
    for name in scores:
        by_split.setdefault(name.split("/")[0], set()).add(name.split("/")[1])
    assert by_split == {
        "test": words | maps,
        "novel": words | maps,
        "teacher_forced": maps,
        "shuffled": words,
        "shuffled_teacher_forced": maps,
        "untrained": words,
        "untrained_teacher_forced": maps,
    }
    assert scores["teacher_forced/correctness"] - scores["teacher_forced/lift"] == pytest.approx(
        0.074, abs=0.02
    )
    assert abs(scores["untrained_teacher_forced/lift"]) < 0.02
    record = json.loads((copy.parent.parent / "run.json").read_text())["test"]
    assert (record["checkpoint"], record["step"]) == ("best", 2)
    assert record["images"] == {"test": 11, "novel": 11}
    assert not (copy.parent.parent / "config.yaml").exists()


def test_validate_prints_and_writes_what_fit_logged(
    tiny: Path, copy: Path, run: Path, capsys: Capsys
) -> None:
    assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    scores = json.loads((copy.parent.parent / "validate.json").read_text())
    with (run / "csv-1" / "metrics.csv").open() as file:
        logged = next(row for row in csv.DictReader(file) if row["val/loss"])
    assert scores["val/loss"] == pytest.approx(float(logged["val/loss"]), rel=1e-5)
    assert scores["val/caption_accuracy"] == float(logged["val/caption_accuracy"])
    assert re.search(rf"val/loss +{scores['val/loss']:.4f}\n", capsys.readouterr().out)


def test_soft_weights_are_scored_with_hard_attention_and_not_trained_with_it(
    tiny: Path, copy: Path, capsys: Capsys
) -> None:
    """Validation reads the most probable places; `fit` refuses before a folder is made."""
    losses: list[float] = []
    for places in (["soft"], ["hard", "--model.captioner.places", "expectation"], ["hard"]):
        options = ["--model.captioner.attention", *places]
        assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy), *options]) == 0
        scores = json.loads((copy.parent.parent / "validate.json").read_text())
        losses.append(scores["val/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] != pytest.approx(losses[0], rel=1e-5)
    assert main(["fit", "--config", str(tiny), "--model.captioner.attention", "hard"]) == 1
    assert "train it with HardAttentionTask" in capsys.readouterr().err
    assert not Path("runs").exists()


TINY = "{tiny}"
COPY = "--config {tiny} --ckpt_path {copy}"
REFUSALS: list[tuple[str, int, str]] = [
    ("fit", 2, "fit needs --config NAME or FILE.yaml; visattn configs lists the names"),
    ("fit --config scenes_dmo", 2, "there is no config scenes_dmo; did you mean scenes_demo"),
    ("fit --config=nowhere.yaml", 2, "there is no config nowhere.yaml"),
    ("test", 2, "test needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and"),
    ("validate --config {tiny}", 2, "without a checkpoint the weights are random"),
    ("test --config {tiny} --ckpt_path nowhere.ckpt", 1, "nowhere.ckpt: No such file"),
    ("predict --config {tiny}", 2, "unknown command 'predict'"),
    ("fit --config {tiny} --data.source.image_size large", 2, "large"),
    ("fit --config {tiny} --data.source.colors [mauve]", 1, "colors must be chosen from red"),
    ("fit --config {tiny} --init_from nowhere.ckpt", 1, "no model is named 'nowhere.ckpt'"),
    ("fit --config {tiny} --trainer.accelerator none", 1, "selected an invalid accelerator"),
    ("fit --config {tiny} --model ClassificationTask", 2, "are required: classifier"),
    ("fit --config {tiny} --model CaptionTsk", 2, "CaptionTsk"),
    ("fit --config {tiny} --model.captioner.hiden_size 3", 2, "hiden_size"),
    ("fit --config {tiny} --trainer.max_epoch 3", 2, "--trainer.max_epoch"),
    ("fit --config {tiny} --data.source.train ${NOWHERE}", 2, "NOWHERE"),
    ("fit --config {tiny} --model.monitor val/cider", 1, "monitor must name a validation metric"),
    ("fit --config {tiny} --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor x", 1,
     "EarlyStopping: monitor must name a validation metric, got 'x'"),
    ("fit --config {tiny} --trainer.callbacks+=EMA --trainer.callbacks+=EMA", 1, "one average"),
    ("fit --config {tiny} --run {run}", 1, "{run} already holds a run; choose another --run"),
    (f"fit {COPY} --run {{run}}", 1, "continues to {run}/checkpoints/last.ckpt, which would be"),
    (f"test {COPY} --model.captioner.hidden_size 13", 1, "the checkpoint does not fit the model"),
    (f"test {COPY} --data.source.colors [red,pink,cyan]", 1, "was trained with other words"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "message"), REFUSALS)
def test_mistakes_are_refused_before_anything_is_made(
    words: str, code: int, message: str, tiny: Path, copy: Path, run: Path, capsys: Capsys
) -> None:
    def filled(text: str) -> str:
        for name, path in (("tiny", tiny), ("copy", copy), ("run", run)):
            text = text.replace("{" + name + "}", str(path))
        return text

    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(filled(words).split()) == code
    error = capsys.readouterr().err
    assert filled(message) in error
    assert "Traceback" not in error
    assert not Path("runs").exists()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_lightnings_private_hook_is_still_there() -> None:
    """Were it renamed, checkpoints would silently overrule the command line again."""
    assert callable(LightningCLI._parse_ckpt_path)


def test_ckpt_path_last_resumes_or_starts_a_run(tiny: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(tiny), "--ckpt_path", "last"]
    assert main([*words, "--trainer.max_steps", "2"]) == 0
    folder = tmp_path / "runs" / "tiny" / "1"
    assert last_of(folder)["global_step"] == 2
    later = [*words, "--trainer.max_steps", "6", "--trainer.max_epochs", "3"]
    assert main([*later, "--run", str(folder)]) == 0
    assert last_of(folder)["global_step"] == 6
    assert {path.name for path in folder.glob("config*")} == {"config.yaml", "config-2.yaml"}
    assert yaml.safe_load((folder / "config-2.yaml").read_text())["trainer"]["max_steps"] == 6
    with (folder / "csv-2" / "metrics.csv").open() as file:
        steps = [row["step"] for row in csv.DictReader(file) if row["train/loss"]]
    assert steps == ["2", "3", "4", "5"]
    assert [path.name for path in folder.parent.iterdir()] == ["1"]
    record = json.loads((folder / "run.json").read_text())
    assert (record["fit"]["sessions"], record["fit"]["steps"]) == (2, 6)


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


def test_a_resumed_run_has_the_optimizer_options_of_the_config(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["fit", "--config", str(tiny), "--run", str(folder), "--ckpt_path", "last"]
    words += ["--model.optim.optimizer", "torch.optim.AdamW"]
    rate, decay = "--model.optim.optimizer.lr", "--model.optim.optimizer.weight_decay"
    assert main([*words, rate, "4e-3", "--trainer.max_steps", "2"]) == 0
    later = [rate, "1e-3", decay, "0.5", "--model.optim.lr_mults", "{encoder: 0.5}"]
    assert main([*words, *later, "--trainer.max_steps", "3"]) == 0
    saved = last_of(folder)
    groups = saved["optimizer_states"][0]["param_groups"]
    assert {group["initial_lr"] for group in groups} == {1e-3, 0.5e-3}
    assert {group["weight_decay"] for group in groups} == {0.5}
    assert saved["lr_schedulers"][0]["base_lrs"] == [group["initial_lr"] for group in groups]


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
        run = tmp_path / str(number)
        assert main(["fit", "--config", str(tiny), "--run", str(run), *shlex.split(words)]) == 0, (
            words
        )
        assert last_of(run)["global_step"] > 1, words


def test_a_saved_config_is_a_config_also_of_an_older_version(run: Path, tmp_path: Path) -> None:
    """Options that left are dropped; a dry run makes nothing."""
    old = yaml.safe_load((run / "config.yaml").read_text())
    old |= {
        "save_steps": 0,
        "max_nonfinite_steps": 10,
        "compile": "no",
        "timeout": None,
        "run": None,
    }
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(old))
    assert main(["fit", "--config", "old.yaml", "--dry-run"]) == 0
    assert not Path("runs").exists()


def test_print_config_shows_every_default(tiny: Path, capsys: Capsys) -> None:
    assert main(["fit", "--config", str(tiny), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["init_args"]["doubly_stochastic_weight"] == 0.0
    assert printed["model"]["init_args"]["captioner"]["init_args"]["dropout"] == 0.1
    assert main(["fit", "--model.help", "CaptioningTask"]) == 0
    assert "--model.doubly_stochastic_weight" in capsys.readouterr().out


def test_a_dry_run_writes_and_downloads_nothing(
    tiny: Path, run: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (*tmp_path.rglob("*"), *run.rglob("*"))}
    assert main(["fit", "--config", str(tiny), "--dry-run"]) == 0
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


class Trap:
    """What a pickle of it does when it is loaded: make a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("word", ["fit", "validate", "test"])
def test_a_checkpoint_runs_nothing(
    word: str, tiny: Path, copy: Path, tmp_path: Path, capsys: Capsys
) -> None:
    torch.save({**torch.load(copy), "extra": Trap(tmp_path / "mark")}, copy)
    assert main([word, "--config", str(tiny), "--ckpt_path", str(copy)]) == 1
    assert "is damaged, or holds code" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()


def accepted(path: str) -> bool:
    """Return whether the parser takes a class by this path."""
    trust_modules()
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--x", type=type)
    try:
        parser.parse_args([f"--x={path}"])
    except ArgumentError:
        return False
    return True


def test_modules_are_trusted_while_the_variable_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "friendmod.py").write_text("class Friend: pass\n")
    assert not accepted("friendmod.Friend")
    assert "friendmod" not in sys.modules
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "elsewhere, friendmod")
    assert accepted("friendmod.Friend")
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "elsewhere")
    assert not accepted("friendmod.Friend")
    sys.modules.pop("friendmod")
    for text in ("os;", "a b", "*", "a..b", "/x/y", "a,b-c"):
        monkeypatch.setenv("VISATTN_TRUST_MODULES", text)
        with pytest.raises(ValueError, match="VISATTN_TRUST_MODULES must hold module names"):
            user_trusted_modules()


def test_only_listed_modules_are_trusted() -> None:
    assert accepted("torch.nn.Linear")
    assert accepted("visattn.models.base.SmallEncoder")
    for path in (
        "torch.utils.data.DataLoader",
        "subprocess.Popen",
        "visattn.models.saving.json.JSONDecoder",  # reached through visattn
        "timm.optim.Lion",
        "lightning.fabric.Fabric",
        "torchmetricsevil.X",
    ):
        assert not accepted(path), path
    assert all(part.isidentifier() for name in TRUSTED_MODULES for part in name.split("."))
