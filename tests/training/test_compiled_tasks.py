"""The option to compile: what it compiles, and tasks that refuse it."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

from visattn.models.vit import VisionTransformer
from visattn.training.classification.task import ClassificationTask
from visattn.training.detection.task import DetectionTask
from visattn.training.glimpses.task import GlimpseTask


def task() -> ClassificationTask:
    model = partial(VisionTransformer, img_size=(8, 8), patch_size=4, embed_dim=6, num_heads=3)
    return ClassificationTask(partial(model, depth=1), {"class_names": ["a", "b"]})


def test_compiled_task_keeps_weights_and_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, str]] = []

    def compile_eagerly(function: Any, *, mode: str) -> Any:
        compiled.append((function.__name__, mode))
        return lambda *args: function(*args)

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    trained = task()
    names, images = list(trained.state_dict()), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    expected = trained.model(images)
    trained.compile_training("reduce-overhead")
    assert compiled == [("classify", "reduce-overhead")]
    torch.testing.assert_close(trained.model(images), expected)
    assert list(copy.deepcopy(trained).state_dict()) == names
    assert GlimpseTask.training_forward == "rollout"


def test_task_without_a_compiled_forward_refuses() -> None:
    trained = task()
    trained.training_forward = ""
    with pytest.raises(ValueError, match="compile must be no for ClassificationTask, got default"):
        trained.compile_training("default")
    assert not DetectionTask.training_forward
