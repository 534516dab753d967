"""Invalid trainer options are refused before anything is built."""

import inspect
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer

from visattn.training.cli.checks import check_trainer

USUAL: dict[str, Any] = {
    "precision": None, "devices": "auto", "accelerator": "cpu", "max_steps": -1, "max_epochs": None,
    "accumulate_grad_batches": 1, "check_val_every_n_epoch": 1, "num_nodes": 1,
    "val_check_interval": None, "strategy": "auto",
}  # fmt: skip
WRONG = {
    "strategy": ["fsdp", "fsdp_cpu_offload", "deepspeed_stage_2"],
    "precision": ["16-true", "bf16-true", "64-true", "64", "transformer-engine"],
    "devices": ["-3", -1, 0, "abc", [0, 1], "1.5"],
    "max_steps": [0, -2],
    "max_epochs": [0, -2],
    "accumulate_grad_batches": [0, -1],
    "check_val_every_n_epoch": [0],
    "num_nodes": [0],
    "val_check_interval": [0, 0.0, -1, -0.5, float("nan")],
}
RIGHT = {
    "strategy": ["auto", "ddp", "ddp_find_unused_parameters_true", "fsdp2"],
    "precision": ["32-true", "32", 16, "16-mixed", "bf16-mixed", "bf16"],
    "devices": ["2", 1, "auto"],
    "max_steps": [1],
    "max_epochs": [-1, 1],
    "check_val_every_n_epoch": [None, 2],
    "val_check_interval": [1, 0.25, 1.0, "00:00:15:00"],
}


def test_invalid_options_are_refused_with_name_and_value() -> None:
    for name, values in WRONG.items():
        for value in values:
            settings = SimpleNamespace(**{**USUAL, name: value})
            with pytest.raises(ValueError, match=f"^trainer.{name} must be ") as caught:
                check_trainer(settings, fitting=True)
            assert f"got {value}" in str(caught.value)
    for name, values in RIGHT.items():
        for value in values:
            check_trainer(SimpleNamespace(**{**USUAL, name: value}), fitting=True)
    check_trainer(SimpleNamespace(**{**USUAL, "max_steps": 0}), fitting=False)


def test_strategies_that_shard_weights_are_refused_by_class_too() -> None:
    strategy = SimpleNamespace(class_path="lightning.pytorch.strategies.ModelParallelStrategy")
    with pytest.raises(ValueError, match="or fsdp2 .*, got .*ModelParallelStrategy: its"):
        check_trainer(SimpleNamespace(**{**USUAL, "strategy": strategy}), fitting=True)


def test_float16_is_refused_with_sharded_weights() -> None:
    own = SimpleNamespace(class_path="visattn.training.distributed.fsdp.FSDP2Strategy")
    for strategy, precision in product(("fsdp2", own), ("16-mixed", 16)):
        settings = {**USUAL, "strategy": strategy, "precision": precision}
        with pytest.raises(ValueError, match=f"bf16-mixed with fsdp2, got {precision}:"):
            check_trainer(SimpleNamespace(**settings), fitting=True)
        check_trainer(SimpleNamespace(**{**settings, "precision": "bf16-mixed"}), fitting=True)


def test_lists_of_gpus_are_accepted_if_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for devices in ("-1", "[0, 1]", "0,1", "2"):
        settings = SimpleNamespace(**{**USUAL, "accelerator": "auto", "devices": devices})
        check_trainer(settings, fitting=True)
    for devices in ("-3", "0"):
        settings = SimpleNamespace(**{**USUAL, "accelerator": "auto", "devices": devices})
        with pytest.raises(ValueError, match=f"-1 for all of them.* got {devices}"):
            check_trainer(settings, fitting=True)


def test_the_options_are_those_of_lightnings_trainer() -> None:
    assert USUAL.keys() <= inspect.signature(Trainer).parameters.keys()
