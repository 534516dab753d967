"""A GPU computes what the host computes: blocks, models, methods, commands, training."""

import copy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from config_runs import CONFIGS, TRAINED, small_run
from model_examples import EXAMPLES
from named_weights import fill, waves
from net_cases import EXPLAINED, outputs
from task_runs import LOSSES
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import visattn as va
from visattn.attribution import METHODS
from visattn.cli import main

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions and products round to ten bits on a GPU unless they are forbidden to."""
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)  # training sets one for its process


def close(name: str, ours: Any, host: Any) -> None:
    """Fail unless both have the same form and nearly the same values."""
    (leaves, form), (expected, form_of_host) = tree_flatten(ours), tree_flatten(host)
    assert form == form_of_host, name
    for mine, its in zip(leaves, expected, strict=True):
        if not isinstance(its, Tensor):
            assert mine == (pytest.approx(its, rel=2e-3, abs=1e-4) if type(its) is float else its)
            continue
        finite = its[its.isfinite()] if its.is_floating_point() else its.new_zeros(0)
        scale = finite.abs().max().item() if finite.numel() else 1.0
        torch.testing.assert_close(
            mine.cpu(), its, atol=2e-4 * max(scale, 1e-6), rtol=2e-3, equal_nan=True,
            msg=lambda text: f"{name}: {text}",
        )  # fmt: skip


def _both(model: nn.Module) -> dict[str, nn.Module]:
    return {"cpu": model, DEVICE: copy.deepcopy(model).to(DEVICE)}


@pytest.mark.parametrize("name", va.list_blocks())
def test_blocks(name: str) -> None:
    computed = {}
    for device, block in _both(fill(va.create_block(name, 24))).items():
        x = (waves(2, 24, 13, 11).float() / 64 - 2).to(device).requires_grad_()
        with va.record(block) as recording:
            output = block(x)
        output.square().mean().backward()
        # Side by side: of some weights the exact gradient is 0, and each device rounds it its way.
        gradients = [w.grad.flatten() for w in block.parameters() if w.grad is not None]
        maps = {each.site: each.values for each in recording.maps}
        computed[device] = [output.detach(), maps, x.grad, torch.cat([x.new_zeros(1), *gradients])]
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(device, dtype):
                output = block(x.detach().requires_grad_())
            output.float().square().mean().backward()
            assert output.isfinite().all()
            assert all(w.grad is None or w.grad.isfinite().all() for w in block.parameters())
    close(name, computed[DEVICE], computed["cpu"])


# Its first glimpse is drawn by the random numbers of the device.
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "RecurrentAttentionModel"])
def test_models(name: str) -> None:
    computed = {}
    for device, model in _both(fill(copy.deepcopy(EXAMPLES[name]))).items():
        torch.manual_seed(0)
        with torch.no_grad():
            computed[device] = outputs(model, device)
    close(name, computed[DEVICE], computed["cpu"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXPLAINED)
def test_methods(name: str, method: str) -> None:
    create, target = EXPLAINED[name]
    photo = waves(1, 3, 61, 83)[0].permute(1, 2, 0).numpy()
    chosen = target if METHODS[method].explains(None) else None
    results: dict[str, Any] = {}
    for device, model in _both(fill(create())).items():
        torch.manual_seed(0)
        try:
            [heatmap] = va.explain(model, photo, method, chosen)
        except ValueError as reason:
            results[device] = str(reason)
        else:
            results[device] = {"values": heatmap.values, "geometry": heatmap.geometry}
    ours, host = results[DEVICE], results["cpu"]
    if isinstance(host, str):  # names of operations differ
        assert str(ours).split(":")[0].replace(DEVICE, "cpu") == host.split(":")[0]
    else:
        close(f"{name} {method}", ours, host)


COMMANDS = {
    "caption": "caption photos --model captioner.safetensors --num-captions 2",
    "glimpse": "glimpse photos --model eye.safetensors",
    "ask": "ask photos --questions 'what color is the ring?' --model asks.safetensors",
    "detect": "detect photos --model boxes.safetensors --threshold 0",
    "segment": "segment photos --model areas.safetensors",
    "overlay": "overlay photos --method gradcam occlusion --model cnn.safetensors",
    "heads": "overlay photos --method attention --model vit.safetensors",
    "maps": "score maps --model cnn.safetensors --data photos --masks masks --methods gradcam",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(
    name: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sandbox)
    monkeypatch.setattr(sys, "argv", ["visattn"])
    arrays: dict[str, dict[str, Any]] = {}
    for device in ("cpu", DEVICE):
        out = sandbox / device / name
        torch.manual_seed(0)
        words = [*shlex.split(COMMANDS[name]), "--out", f"{device}/{name}", "--device", device]
        assert main(words) == 0, capsys.readouterr().err
        arrays[device] = {
            path.relative_to(out).as_posix(): {
                key: torch.from_numpy(array) for key, array in np.load(path).items()
            }
            for path in out.rglob("*.npz")
        }
        names = sorted(p.relative_to(out).as_posix() for p in out.rglob("[!.]*") if p.is_file())
        arrays[device]["files"] = names
    close(name, arrays[DEVICE], arrays["cpu"])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("stem", sorted(TRAINED))
@pytest.mark.usefixtures("small_data")
def test_training(stem: str, precision: str, tmp_path: Path) -> None:
    recipes = {recipe.name: recipe for recipe in CONFIGS}
    options = (
        "--trainer.callbacks+=task_runs.LossLog --trainer.limit_val_batches=0"
        " --trainer.max_steps=3 --trainer.max_epochs=3 --trainer.logger=false"
        " --trainer.callbacks.last=3"
        f" --trainer.accelerator={'gpu' if DEVICE == 'cuda' else 'cpu'} --trainer.devices=1"
        f" --trainer.precision={precision}"
    )
    run = tmp_path / "run"
    assert main(["fit", *small_run(recipes[stem]), *options.split(), "--run", str(run)]) == 0
    assert len(LOSSES) >= 3
    assert torch.tensor(LOSSES).isfinite().all(), LOSSES


@pytest.mark.parametrize("name", [n for n in va.list_blocks() if n != "gate"])
def test_inserted_blocks_are_where_the_network_is(name: str) -> None:
    torch.manual_seed(0)
    host = timm.create_model("test_resnet", num_classes=3).eval()
    x = waves(2, 3, 96, 96).float() / 64 - 2
    results = {}
    for device, model in _both(host).items():
        torch.manual_seed(0)
        va.insert(model, name, position="residual", example=x.to(device), init="paper")
        assert {weight.device.type for weight in model.parameters()} == {device}
        with torch.no_grad():
            results[device] = model(x.to(device))
    close(name, results[DEVICE], results["cpu"])
