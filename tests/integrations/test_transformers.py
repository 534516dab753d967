"""The callback of Hugging Face's Trainer."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")

from visattn.integrations.transformers import AttentionCallback  # noqa: E402
from visattn.pipelines.attention_panels import AttentionPanels  # noqa: E402


def tiny_vit() -> object:
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=32, patch_size=8, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def test_maps_are_drawn_first_every_so_often_and_last(tmp_path: Path) -> None:
    photo = np.random.default_rng(3).integers(0, 255, (40, 56, 3), np.uint8)
    panels = AttentionPanels(photo, tmp_path, method="rollout", every_n_steps=2)
    callback, model = AttentionCallback(panels), tiny_vit()
    state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    callback.on_train_begin(None, state, None, model=model)
    for state.global_step in (1, 2, 3):
        callback.on_step_end(None, state, None, model=model)
    callback.on_train_end(None, state, None, model=model)
    steps = sorted(file.parent.name for file in tmp_path.glob("*/1-image.jpg"))
    assert steps == ["step-0000000", "step-0000002", "step-0000003"]


def test_other_processes_draw_nothing(tmp_path: Path) -> None:
    panels = AttentionPanels(np.zeros((8, 8, 3), np.uint8), tmp_path, method="rollout")
    state = SimpleNamespace(global_step=0, is_world_process_zero=False)
    AttentionCallback(panels).on_train_begin(None, state, None, model=tiny_vit())
    assert not list(tmp_path.iterdir())
