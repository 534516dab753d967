"""Configs, saved runs and command lines with the names of earlier versions."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from visattn.cli import main
from visattn.training.cli.renames import OPTIONS, rename_arguments, rename_config

ADAM = "optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.5}}"
SCHEDULE = "schedule: cosine, warmup_steps: 7, decay_start: 0.3"
CAPTIONER = "captioner: {class_path: ShowAttendTell, init_args: {encoder: SmallEncoder%s}}"
ENCODER = "init_args: {encoder: SmallEncoder}"
# The model of each task of November 2026 and its options, of which all have another name today.
OLD = {
    "CaptioningTask": (CAPTIONER % "", "encoder_lr_mult: 0.1, warmup_steps: 7, decay_start: 0.3"),
    "HardAttentionTask": (
        CAPTIONER % ", attention: hard",
        "encoder_lr_mult: 0.1, baseline_lr_mult: 3, warmup_steps: 7",
    ),
    "SCSTTask": (CAPTIONER % "", "encoder_lr_mult: 0, decay_start: 0.3"),
    "ClassificationTask": (
        "classifier: AttentionResNet",
        f"backbone_lr_mult: 0.1, block_lr_mult: 30.0, head_lr_mult: 2, {SCHEDULE}",
    ),
    "DetectionTask": (
        f"detector: {{class_path: DETR, {ENCODER}}}",
        "encoder_lr_mult: 0.1, warmup_steps: 7, decay_start: 0.3",
    ),
    "GlimpseTask": (
        "model: {class_path: RecurrentAttentionModel, "
        "init_args: {img_size: [28, 28], mean: [0.1], std: [0.3]}}",
        "policy_lr_mult: 0.2, baseline_lr_mult: 1.0, schedule: linear, warmup_steps: 7",
    ),
    "QuestionTask": (
        f"vqa_model: {{class_path: MAC, {ENCODER}}}",
        f"encoder_lr_mult: 0.1, {SCHEDULE}",
    ),
    "SegmentationTask": (
        f"segmenter: {{class_path: UNet, {ENCODER}}}",
        f"encoder_lr_mult: 0.1, {SCHEDULE}",
    ),
    "SequenceRecognitionTask": (CAPTIONER % "", "warmup_steps: 7, decay_start: 0.3"),
}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["fit", *arguments, "--print_config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]


@pytest.mark.parametrize("task", OLD)
def test_flat_options_of_each_task_are_read(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    model, options = OLD[task]
    text = f"model: {{class_path: {task}, init_args: {{{model}, {options}, {ADAM}}}}}"
    (tmp_path / "old.yaml").write_text(text)
    arguments = printed(capsys, "--config", str(tmp_path / "old.yaml"))
    assert not set(OPTIONS) & set(arguments)
    optim = arguments["optim"]
    assert optim["optimizer"]["class_path"] == "torch.optim.Adam"
    assert optim["optimizer"]["init_args"]["lr"] == 0.5
    for name, value in yaml.safe_load(f"{{{options}}}").items():
        *_, parent, last = OPTIONS[name].split(".")
        assert (optim if parent == "optim" else optim[parent])[last] == value, name


def test_flat_options_of_the_command_line_override_a_config(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    flat = ["--model.warmup_steps=3", "--model.init_args.decay_start", "0.2"]
    flat += ["--model.optimizer.lr=0.25", "--model.encoder_lr_mult=0.5"]
    optim = printed(capsys, "--config", "scenes_soft", *flat)["optim"]
    assert (optim["warmup_steps"], optim["decay_start"]) == (3, 0.2)
    assert optim["optimizer"]["init_args"]["lr"] == 0.25
    assert optim["optimizer"]["init_args"]["weight_decay"] == 1e-2
    assert optim["lr_mults"] == {"encoder": 0.5}


def test_init_from_of_a_task_is_an_option_of_fit() -> None:
    options = {"class_path": "SCSTTask", "init_args": {"init_from": "a.ckpt", "beam_size": 3}}
    renamed = rename_config({"model": options})
    del options["init_args"]["init_from"]
    assert renamed == {"init_from": "a.ckpt", "model": options}
    over = {"model": {"init_args": {"init_from": None}}}  # as saved runs have it
    assert rename_config(over) == {"model": {"init_args": {}}}
    assert rename_config(over, own_task=False) == over
    words = ["--model.init_from=a.ckpt", "--model.init_args.init_from", "a.ckpt"]
    assert rename_arguments(words, []) == ["--init_from=a.ckpt", "--init_from", "a.ckpt"]


def test_tasks_of_others_keep_their_names() -> None:
    own = {"class_path": "my_tasks.MyTask", "init_args": {"warmup_steps": 3}}
    assert rename_config({"model": own}) == {"model": own}
    arguments = ["--config", "my.yaml", "--model.warmup_steps=3", "--model.init_from=a.ckpt"]
    assert rename_arguments(arguments, [{"model": own}]) == arguments
    chosen = [*arguments, "--model", "visattn.training.CaptioningTask"]
    assert "--model.optim.warmup_steps=3" in rename_arguments(chosen, [{"model": own}])


def test_a_config_over_another_need_not_name_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    over = tmp_path / "over.yaml"
    over.write_text("model: {init_args: {warmup_steps: 3, optimizer: {init_args: {lr: 0.25}}}}")
    optim = printed(capsys, "--config", "scenes_soft", "--config", str(over))["optim"]
    assert (optim["warmup_steps"], optim["optimizer"]["init_args"]["lr"]) == (3, 0.25)
    other = {"model": {"init_args": {"warmup_steps": 3}}}
    assert rename_config(other, own_task=False) == other


def test_classes_are_known_by_their_former_modules() -> None:
    old = {
        "model": {"class_path": "visattn.training.tasks.glimpse.GlimpseTask"},
        "data": {"class_path": "visattn.training.data.vqa.VQADataModule"},
        "other": [
            "visattn.models.captioning.transformer_captioner.TransformerCaptioner",
            "visattn.training.callbacks.image_logging.CaptionPanels",
            "visattn.models.saving.state_dicts.os.system",
            "my.visattn_models.Net",
        ],
    }
    new = rename_config(old)
    assert new["model"]["class_path"] == "visattn.training.GlimpseTask"
    assert new["data"]["class_path"] == "visattn.training.VQADataModule"
    assert new["other"] == [
        "visattn.models.TransformerCaptioner",
        "visattn.training.CaptionPanels",
        *old["other"][2:],
    ]


def test_both_names_in_a_config_are_joined() -> None:
    options = {"encoder_lr_mult": 0.1, "optim": {"lr_mults": {"decoder": 2.0}, "warmup_steps": 5}}
    config = rename_config({"class_path": "CaptioningTask", "init_args": options})
    optim = config["init_args"]["optim"]
    assert optim == {"lr_mults": {"encoder": 0.1, "decoder": 2.0}, "warmup_steps": 5}
