"""`visattn fit`, `validate` and `test` end to end."""

import csv
import json
import os
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from visattn.cli import main
from visattn.models.config import model_config
from visattn.models.saving import load
from visattn.pipelines.captioning import caption
from visattn.training.captioning.data import ScenesDataModule
from visattn.training.cli.lightning_cli import TrainingCLI


def test_a_run_leaves_its_config_checkpoints_and_scores(run: Path) -> None:
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["init_args"]["captioner"]["init_args"]["hidden_size"] == 11
    assert "data_info" not in config["model"]["init_args"]
    with (run / "csv-1" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["train/loss"]]) == 4
    assert len([row for row in rows if row["val/caption_accuracy"]]) == 2
    assert 0 < float(rows[0]["train/attention_entropy"]) <= 2.1973  # log 9


def test_caption_panels_are_logged_as_images(run: Path) -> None:
    [events] = run.glob("events.*")
    board = EventAccumulator(str(events)).Reload()
    assert {"train/loss", "val/loss"} <= set(board.Tags()["scalars"])
    panels = board.Images("captions/0")
    assert len(panels) == 2  # after each validation
    image = Image.open(BytesIO(panels[-1].encoded_image_string))
    assert image.width == 480
    assert len(image.convert("RGB").getcolors(10**6) or []) > 20


def test_last_and_best_checkpoints_are_of_the_right_steps(run: Path) -> None:
    best, last = (torch.load(run / "checkpoints" / f"{name}.ckpt") for name in ("best", "last"))
    assert last["global_step"] == 4
    assert best["global_step"] == 2  # the second validation was no better


def test_a_checkpoint_holds_plain_values(run: Path) -> None:
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["visattn"]["model"]["class"] == "ShowAttendTell"
    assert "hyper_parameters" not in saved


def test_export_then_load_then_caption(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, file = run / "checkpoints" / "best.ckpt", tmp_path / "m.safetensors"
    assert main(["export", str(checkpoint), "--out", str(file)]) == 0
    model: Any = load(file)
    trained = load(checkpoint)
    assert model_config(model) == model_config(trained)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[name])
    (pixels,) = ScenesDataModule(image_size=24, val=3).examples(1)
    (said,) = caption(model, pixels)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    capsys.readouterr()
    assert main(["caption", str(tmp_path / "scene.png"), "--weights", str(file)]) == 0
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
    assert not (copy.parent.parent / "config.yaml").exists()


def test_validate_writes_what_fit_logged(tiny: Path, copy: Path, run: Path) -> None:
    assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy)]) == 0
    scores = json.loads((copy.parent.parent / "validate.json").read_text())
    with (run / "csv-1" / "metrics.csv").open() as file:
        logged = next(row for row in csv.DictReader(file) if row["val/loss"])
    assert scores["val/loss"] == pytest.approx(float(logged["val/loss"]), rel=1e-5)
    assert scores["val/caption_accuracy"] == float(logged["val/caption_accuracy"])


@pytest.mark.parametrize("word", ["validate", "test"])
def test_random_weights_are_not_scored(
    word: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--config", str(tiny)]) == 2
    assert f"{word} needs --ckpt_path FILE: without it the weights are random" in (
        capsys.readouterr().err
    )
    assert main([word, "--config", str(tiny), "--ckpt_path", "nowhere.ckpt"]) == 1
    assert "nowhere.ckpt: No such file" in capsys.readouterr().err


def test_the_command_line_beats_the_checkpoint(
    tiny: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", "--config", str(tiny), "--ckpt_path", str(copy)]
    assert main([*words, "--model.captioner.hidden_size", "13"]) == 1
    said = capsys.readouterr().err
    assert "the checkpoint does not fit the model" in said
    assert re.search(
        r"0 missing keys .*'model\.decoder\.\S+ \[\S+, 11\] instead of \[\S+, 13\]", said
    )
    assert max(map(len, said.splitlines())) < 500


def test_soft_weights_are_scored_with_hard_attention_and_not_trained_with_it(
    tiny: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validation reads the most probable places; `fit` refuses before a folder is made."""
    hard = ["--model.captioner.attention", "hard"]
    losses: list[float] = []
    for places in (["soft"], ["hard", "--model.captioner.places", "expectation"], ["hard"]):
        options = ["--model.captioner.attention", *places]
        assert main(["validate", "--config", str(tiny), "--ckpt_path", str(copy), *options]) == 0
        scores = json.loads((copy.parent.parent / "validate.json").read_text())
        losses.append(scores["val/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] != pytest.approx(losses[0], rel=1e-5)
    assert main(["fit", "--config", str(tiny), *hard]) == 1
    assert "train it with HardAttentionTask" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_lightnings_private_hook_is_still_there() -> None:
    """Were it renamed, checkpoints would silently overrule the command line again."""
    assert callable(LightningCLI._parse_ckpt_path)


def test_task_and_data_are_connected_before_the_trainer_runs(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[tuple[Any, Any]] = []

    def record(cli: TrainingCLI, **_: Any) -> None:
        connected.append((cli.model.data is cli.datamodule, cli.datamodule.input_spec))

    monkeypatch.setattr(TrainingCLI, "fit", record)
    monkeypatch.setattr(TrainingCLI, "after_fit", lambda _: None)
    assert main(["fit", "--config", str(tiny), "--run", str(tmp_path / "run")]) == 0
    [(same, spec)] = connected
    assert same
    assert spec.image_size == (24, 24)


def test_another_vocabulary_is_refused(
    tiny: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["test", "--config", str(tiny), "--ckpt_path", str(copy)]
    assert main([*words, "--data.colors", "[red,pink,cyan]"]) == 1
    assert "the checkpoint was trained with other words" in capsys.readouterr().err


def test_a_run_is_not_overwritten(
    run: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["fit", "--config", str(tiny), "--run", str(run)]) == 1
    said = capsys.readouterr().err
    assert f"{run} already holds a run; choose another --run, remove the folder, or resume" in said
    assert f"--ckpt_path {run}/checkpoints/last.ckpt" in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_resuming_does_not_overwrite_another_run(
    run: Path, copy: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "--config", str(tiny), "--ckpt_path"]
    assert main([*words, str(copy), "--run", str(run)]) == 1
    assert f"{run} already holds a run" in capsys.readouterr().err
    last = copy.with_name("last.ckpt")
    last.write_bytes((run / "checkpoints" / "last.ckpt").read_bytes())
    for early in (str(copy), "best"):
        assert main([*words, early, "--run", str(copy.parents[1])]) == 1
        said = capsys.readouterr().err
        assert "best.ckpt is of step 2, and the run continues to step 4" in said
        assert f"--ckpt_path last --run {copy.parents[1]}" in said


def test_ckpt_path_last_resumes_or_starts_a_run(tiny: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(tiny), "--ckpt_path", "last"]
    assert main([*words, "--trainer.max_steps", "2"]) == 0
    folder = tmp_path / "runs" / "tiny" / "1"
    last = folder / "checkpoints" / "last.ckpt"
    assert torch.load(last)["global_step"] == 2
    assert main([*words, "--run", str(folder)]) == 0
    assert torch.load(last)["global_step"] == 4
    assert {path.name for path in folder.glob("config*")} == {"config.yaml", "config-2.yaml"}
    assert yaml.safe_load((folder / "config-2.yaml").read_text())["ckpt_path"] == "last"
    assert main([*words, "--trainer.max_steps", "5", "--trainer.max_epochs", "3"]) == 0
    assert torch.load(last)["global_step"] == 5
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


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


def test_a_resumed_run_has_the_optimizer_options_of_the_config(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["fit", "--config", str(tiny), "--run", str(folder), "--ckpt_path", "last"]
    adam, sgd = (["--model.optim.optimizer", f"torch.optim.{name}"] for name in ("AdamW", "SGD"))
    rate, decay = "--model.optim.optimizer.lr", "--model.optim.optimizer.weight_decay"
    mult = "--model.optim.lr_mults"
    assert main([*words, *adam, rate, "4e-3", "--trainer.max_steps", "2"]) == 0
    later = [rate, "1e-3", decay, "0.5", mult, "{encoder: 0.5}", "--trainer.max_steps", "3"]
    assert main([*words, *adam, *later]) == 0
    saved = torch.load(folder / "checkpoints" / "last.ckpt")
    groups = saved["optimizer_states"][0]["param_groups"]
    assert {group["initial_lr"] for group in groups} == {1e-3, 0.5e-3}
    assert {group["weight_decay"] for group in groups} == {0.5}
    assert saved["lr_schedulers"][0]["base_lrs"] == [group["initial_lr"] for group in groups]
    assert main([*words, *sgd, rate, "0.1"]) == 1
    assert "the checkpoint is of another optimizer than SGD" in capsys.readouterr().err


def test_a_run_resumes_from_its_last_checkpoint(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tiny" / "1"
    assert main(["fit", "--config", str(tiny)]) == 0  # a folder of its own, named by the config
    last = folder / "checkpoints" / "last.ckpt"
    words = ["--config", str(tiny), "--trainer.max_steps", "6", "--trainer.max_epochs", "3"]
    assert main(["fit", *words, "--ckpt_path", str(last)]) == 0
    assert torch.load(last)["global_step"] == 6
    assert (folder / "config.yaml").exists()
    later = yaml.safe_load((folder / "config-2.yaml").read_text())
    assert later["trainer"]["max_steps"] == 6
    with (folder / "csv-2" / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file) if row["train/loss"]] == ["4", "5"]
    assert not (tmp_path / "runs" / "tiny" / "2").exists()


def test_a_config_is_found_by_its_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visattn.training.cli.arguments.config_directory", lambda: tiny.parent)
    quick = ["--trainer.max_steps", "1", "--trainer.logger", "false"]
    assert main(["fit", "--config", "tiny", *quick]) == 0
    assert main(["fit", "--config=tiny", *quick]) == 0
    for number in ("1", "2"):
        assert Path("runs", "tiny", number, "config.yaml").is_file()
    last = "runs/tiny/1/checkpoints/last.ckpt"
    for command in ("validate", "test"):
        assert main([command, "--config", "tiny", "--ckpt_path", last, "--dry-run"]) == 0


def test_runs_without_a_name_are_counted(tiny: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(tiny), "--trainer.max_steps", "1"]
    words += ["--trainer.limit_val_batches", "0", "--trainer.enable_checkpointing", "false"]
    words += ["--trainer.logger", "false"]
    for number in ("1", "2"):
        assert main(words) == 0
        assert (tmp_path / "runs" / "tiny" / number / "config.yaml").exists()
    assert not list((tmp_path / "runs").rglob("checkpoints"))
    assert not list((tmp_path / "runs").rglob("events.*"))


def test_a_run_without_validation_keeps_its_last(tiny: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(tiny), "--run", str(tmp_path / "blind")]
    assert main([*words, "--trainer.limit_val_batches", "0"]) == 0
    [last] = (tmp_path / "blind" / "checkpoints").iterdir()
    assert last.name == "last.ckpt"
    assert torch.load(last)["global_step"] == 4


def test_a_saved_config_is_a_config(run: Path, tmp_path: Path) -> None:
    words = ["fit", "--config", str(run / "config.yaml"), "--run", str(tmp_path / "again")]
    assert main([*words, "--trainer.fast_dev_run", "1"]) == 0


def test_the_best_checkpoint_is_named_beside_one_of_the_user(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "--config", str(tiny), "--run", str(tmp_path / "run")]
    assert main([*words, "--trainer.callbacks+=ModelCheckpoint"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"best checkpoint \(val/\S+ [\d.]+\): .*checkpoints/best\.ckpt", printed)


def test_wrong_values_are_refused_before_anything_is_made(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config", str(tiny), "--data.image_size", "large"]) == 2
    assert "large" in capsys.readouterr().err
    assert main(["fit", "--config", str(tiny), "--data.colors", "[mauve]"]) == 1
    assert "colors must be chosen from red" in capsys.readouterr().err
    assert main(["fit", "--config", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
    assert main(["fit"]) == 2
    assert "fit needs --config NAME or FILE.yaml" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_predict_is_not_a_command(tiny: Path) -> None:
    assert main(["predict", "--config", str(tiny)]) == 2


def test_print_config_shows_every_default(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", str(tiny), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["init_args"]["doubly_stochastic_weight"] == 0.0
    assert printed["model"]["init_args"]["captioner"]["init_args"]["dropout"] == 0.1


class Trap:
    """What a pickle of it does when it is loaded: make a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("word", ["fit", "validate", "test"])
def test_a_checkpoint_runs_nothing(
    word: str, tiny: Path, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({**torch.load(copy), "extra": Trap(tmp_path / "mark")}, copy)
    assert main([word, "--config", str(tiny), "--ckpt_path", str(copy)]) == 1
    assert "is damaged, or holds code" in capsys.readouterr().err
    assert not (tmp_path / "mark").exists()
