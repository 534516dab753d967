"""FSDP2 on two processes has the weights, checkpoints and scores of one process without it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_commands import run_commands, run_on_two_ranks
from task_configs import CONFIGS, write_task_configs

import visattn as va
from visattn.models.saving.checkpoint import read_checkpoint, read_model
from visattn.models.vit.vision_transformer import VisionTransformer

# The states of both runs are kept, as they would be in a folder that was moved.
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
MIDDLE = "checkpoints/epoch=1-step=4.ckpt"
CALLBACKS = """\
  callbacks:
  - class_path: EMA
    init_args: {decay: 0.9, use_warmup: false}
  - class_path: lightning.pytorch.callbacks.ModelCheckpoint
    init_args: {every_n_train_steps: 4, save_top_k: -1}
"""
TIMM = """\
      class_path: TimmClassifier
      init_args:
        {name: test_vit, img_size: [28, 28], grad_checkpointing: true, mean: [0.1, 0.1, 0.1],
         std: [0.3, 0.3, 0.3], timm_kwargs: {img_size: 28, patch_size: 7, depth: 3}}
"""


def write_configs(folder: Path) -> None:
    """Write `vit.yaml`, our transformer with EMA, and `timm.yaml`, recomputed in the backward."""
    write_task_configs(folder)
    log = "  callbacks: [{class_path: training_log.TrainingLog}]\n"
    for name, source in (("vit", "digits"), ("timm", "shapes")):
        config = CONFIGS[source].replace(log, CALLBACKS).replace("depth: 1", "depth: 3")
        if name == "timm":
            start = config.index("      class_path: VisionTransformer")
            config = config[:start] + TIMM + config[config.index("    optimizer:") :]
        (folder / f"{name}.yaml").write_text(config)


def fit(name: str, run: str, batch_size: int, *options: str) -> list[str]:
    size = ["--data.batch_size", str(batch_size)]
    return ["fit", "--config", f"{name}.yaml", "--run", run, *size, *options]


def scored(run: str, checkpoint: str) -> list[str]:
    return ["validate", "--config", "vit.yaml", "--run", run, "--ckpt_path", checkpoint]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    write_configs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["visattn"])
        run_commands([fit(name, f"{name}_one", 6) for name in ("vit", "timm")])
        commands = [fit(name, f"{name}_two", 3) for name in ("vit", "timm")]
        commands += [
            fit("vit", "two_from_two", 3, "--ckpt_path", f"vit_two/{MIDDLE}"),
            fit("vit", "two_from_one", 3, "--ckpt_path", f"vit_one/{MIDDLE}"),
            scored("scored_by_two", "vit_two/checkpoints/last.ckpt"),
        ]
        run_on_two_ranks(commands, folder, strategy="fsdp2")
        run_commands([
            fit("vit", "one_from_two", 6, "--ckpt_path", f"vit_two/{MIDDLE}"),
            scored("scored_by_one", "vit_two/checkpoints/last.ckpt"),
        ])  # fmt: skip
    return folder


def assert_same(runs: Path, run: str, reference: str, file: str = "checkpoints/last.ckpt") -> None:
    """Compare all weights, averages and optimizer states of two checkpoints."""
    mine, other = (read_checkpoint(runs / name / file) for name in (run, reference))
    for part in ("state_dict", "current_model_state"):
        assert mine[part].keys() == other[part].keys()
        for name, value in other[part].items():
            torch.testing.assert_close(mine[part][name], value, rtol=1e-4, atol=1e-5)
            assert type(mine[part][name]) is torch.Tensor
    (state,), (expected,) = mine["optimizer_states"], other["optimizer_states"]
    assert state["param_groups"] == expected["param_groups"]
    assert state["state"].keys() == expected["state"].keys()
    for number, parts in expected["state"].items():
        for name, value in parts.items():
            own = state["state"][number][name]
            torch.testing.assert_close(own, value, rtol=1e-3, atol=1e-5)
    assert mine["global_step"] == other["global_step"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "timm"])
def test_two_sharded_processes_train_as_one(runs: Path, name: str) -> None:
    assert_same(runs, f"{name}_two", f"{name}_one")
    assert_same(runs, f"{name}_two", f"{name}_one", MIDDLE)
    saved = read_checkpoint(runs / f"{name}_two" / MIDDLE)
    average, current = saved["state_dict"], saved["current_model_state"]
    assert max(float((average[key] - current[key]).abs().max()) for key in average) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["two_from_two", "two_from_one", "one_from_two"])
def test_any_number_of_processes_resumes(runs: Path, resumed: str) -> None:
    assert_same(runs, resumed, "vit_one")


@pytest.mark.slow
def test_validation_and_recording_of_a_checkpoint_that_was_sharded(runs: Path) -> None:
    alone, both = (
        json.loads((runs / f"scored_by_{who}" / "validate.json").read_text())
        for who in ("one", "two")
    )
    assert alone.keys() == both.keys()
    for name in ("val/loss", "val/accuracy", "val/calibration_error"):
        assert both[name] == pytest.approx(alone[name], rel=1e-5)
    model: Any = read_model(runs / "vit_two" / "checkpoints" / "best.ckpt")
    assert type(model) is VisionTransformer
    image = np.random.default_rng(3).integers(256, size=(28, 28, 3), dtype=np.uint8)
    plain: Any = read_model(runs / "vit_one" / "checkpoints" / "best.ckpt")
    own_map, reference = (va.explain(each, image, method="rollout")[0] for each in (model, plain))
    torch.testing.assert_close(own_map.values, reference.values, rtol=1e-3, atol=1e-4)
