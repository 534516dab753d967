"""Files that an earlier version wrote: each is read, and gives what it gave."""

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from named_weights import waves
from net_cases import outputs
from safetensors.torch import load_file

import visattn as va
from visattn.cli import main
from visattn.models.config import model_classes
from visattn.training.command import find_config
from visattn.training.data_module import DataModule
from visattn.training.parser import Parser, trust_modules

# Written once, in November 2026: models by `va.save`, each with small sizes and the options that a
# config sets, and weights of blocks of 8 channels; the JSON beside has what they computed. A later
# version adds its own.
FILES = Path(__file__).parent / "files"
MODELS = sorted((FILES / "models").glob("*.safetensors"))
OUTPUTS = json.loads((FILES / "models" / "outputs.json").read_text())


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_saved_model_computes_what_it_did(path: Path) -> None:
    model = va.load(path)
    torch.manual_seed(0)  # of the first glimpse
    with torch.no_grad():
        output = outputs(model)
    _compare(OUTPUTS[path.stem], output, path.stem)


def test_defaults_of_models_are_what_they_were() -> None:
    """A config that leaves an argument out means the same model."""
    kept = json.loads((FILES / "models" / "defaults.json").read_text())
    for name, defaults in kept.items():
        parameters = inspect.signature(model_classes()[name]).parameters.items()
        now = {key: each.default for key, each in parameters if each.default is not each.empty}
        assert json.loads(json.dumps(now)) == defaults, name


def test_weights_of_each_block_compute_what_they_did() -> None:
    """Those of a spatial transformer, which are many, are in `ResNet-stn`."""
    weights = load_file(FILES / "blocks.safetensors")
    expected = json.loads((FILES / "blocks.json").read_text())
    assert {*expected, "stn"} == {*va.list_blocks()}
    x = waves(2, 8, 13, 11).float() / 64 - 2
    for name, kept in expected.items():
        block = va.create_block(name, 8).eval()
        start = f"{name}."
        own = {k.removeprefix(start): w for k, w in weights.items() if k.startswith(start)}
        block.load_state_dict(own)
        with torch.no_grad():
            _compare(kept, block(x), name)


def _compare(kept: Any, output: Any, where: str) -> None:
    """Compare shape, sum and first values of each tensor."""
    if isinstance(output, dict):
        assert sorted(output) == sorted(kept), where
        for key, each in output.items():
            _compare(kept[key], each, f"{where}/{key}")
    elif isinstance(output, list | tuple):
        assert len(output) == len(kept), where
        for index, each in enumerate(output):
            _compare(kept[index], each, f"{where}/{index}")
    elif isinstance(output, torch.Tensor):
        assert list(output.shape) == kept["shape"], where
        scale = max(1e-3, output.double().abs().max().item())
        first = output.double().flatten()[:7]
        expected = torch.tensor(kept["first"], dtype=torch.float64)
        assert (first - expected).abs().max().item() <= 1e-3 * scale, where
        total = output.double().sum().item()
        assert abs(total - kept["sum"]) <= 1e-3 * scale * max(1, output.numel()) ** 0.5, where
    else:
        assert output == kept, where


def test_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(FILES / "run", run)
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.chdir(tmp_path)
    assert type(va.load(run)).__name__ == "ShowAttendTell"
    config, last = run / "config.yaml", run / "checkpoints" / "last.ckpt"
    text = config.read_text()
    assert "timeout:" in text  # an option that left
    config.write_text(re.sub(r"(?m)^( +)hidden_size:.*$", r"\g<0>\n\1meshed: false", text))
    for file in (run / "checkpoints" / "best.ckpt", last):
        held = torch.load(file)
        held["state_dict"]["average_reward"] = torch.zeros(())  # of hard attention
        torch.save(held, file)
    assert main(["test", "--run", str(run)]) == 0
    assert (run / "test.json").exists()
    for steps, file in ((3, FILES / "config.yaml"), (4, config)):
        longer = [f"--trainer.max_steps={steps}", "--trainer.max_epochs=3", "--ckpt_path", "last"]
        assert main(["fit", "--config", str(file), "--run", str(run), *longer]) == 0
        assert torch.load(last)["global_step"] == steps


def test_data_of_older_runs_are_those_of_the_configs_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISATTN_DATA", "data")
    trust_modules()
    parser = Parser(exit_on_error=False)
    parser.add_subclass_arguments(DataModule, "data")

    def parsed(data: dict[str, Any]) -> dict[str, Any]:
        options = parser.parse_string(yaml.safe_dump({"data": data})).data.as_dict()
        # Defaults of today are null, and those of the time were numbers.
        given = options["init_args"].items()
        options["init_args"] = {k: v for k, v in given if k not in ("num_workers", "resize_mode")}
        return options

    for name, old in yaml.safe_load((FILES / "old_data.yaml").read_text()).items():
        new = yaml.safe_load(find_config(name).read_text())["data"]
        if name == "vit_imagenet":  # RandomErasing takes the mean of a color
            old["init_args"]["batch_transforms"][2]["RandomErasing"]["value"] = 116
        assert parsed(old) == parsed(new), name
    with pytest.raises(ValueError, match=r"ScenesDataModule is now data: {class_path: CaptionData"):
        parsed({"class_path": "ScenesDataModule", "init_args": {"val": 3}})
    with pytest.raises(ValueError, match="HubCaptionDataModule is now data: {class_path: a module"):
        parsed({"class_path": "visattn.training.HubCaptionDataModule"})
