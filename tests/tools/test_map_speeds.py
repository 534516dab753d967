"""Maps measured at toy sizes: all ways give the same, the figures say what is meant."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tool_modules import TOOLS, tool_module


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)  # as Python has it that runs a script there
    return tool_module("benchmark")


@pytest.fixture
def speeds(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark of maps, made small."""
    torch.manual_seed(0)
    made = importlib.import_module("benchmarks.map_speeds")
    transformers = importlib.import_module("benchmarks.transformer_speeds")
    case = transformers.WATCHED._replace(title="Ti/16", preset="tiny", batch=1)
    monkeypatch.setattr(transformers, "WATCHED", case)
    monkeypatch.setattr(transformers, "SECONDS", 0.0)
    small = {"CNN": "resnet18", "IMAGES": 2, "SIDE": 64, "PHOTO": (256, 341), "SECONDS": 0.0}
    for name, value in {**small, "VIT": "test_vit", "LOOKED_AT": 1}.items():
        monkeypatch.setattr(made, name, value)
    held = {"plain": 2.0, "recorded": 3.0, "extracted": 12.0}
    monkeypatch.setattr(made, "map_memory", lambda way, *_: held[way])
    return made


def test_each_part_gives_its_figures(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    assert tool.main(["maps", "--rounds", "1", "--threads", "1", "--out", str(out)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    titles = [
        "Grad-CAM, resnet18, 2 images, s; plain / ours",
        "Ti/16, 1 images, forward, s; class rows of all layers recorded (0.03 MiB an image)",
        "test_vit, 1 images, s; class rows of all layers recorded / not",
        "test_vit, 1 images, s; timm's unfused extraction / ours",
        "test_vit, 1 images, s more than plain; timm's unfused extraction / ours",
        "test_vit, 1 images, MB kept; extracted / ours",
        "test_vit, 1 images, MB at most; extracted / ours",
        "overlay, 0.1 megapixels, array to array, s",
    ]
    assert [line[: len(title)] for line, title in zip(lines, titles, strict=True)] == titles
    assert re.search(r"ours \d+\.\d+, plain \d+\.\d+; \d+\.\d+ \(.*; at most 1\.1 is", lines[2])
    kept, held = json.loads(out.read_text())[5:7]
    assert kept["ratio"] == 1 + 10 * 10  # all rows, and not one
    assert held["ratio"] == 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux keeps such accounts")
def test_memory_is_measured_in_a_process_of_its_own(tool: ModuleType) -> None:
    memories = importlib.import_module("benchmarks.map_memories")
    assert 0 < memories.map_memory("extracted", "test_vit", 2) < 500


def test_ways_that_differ_are_no_figure(speeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(_: Any, images: torch.Tensor, __: Any) -> torch.Tensor:
        return torch.zeros(len(images), 2, 2)

    monkeypatch.setattr(speeds, "gradcam", zeros)
    with pytest.raises(AssertionError, match="plain"):
        next(speeds.gradient_maps(1))


def test_a_part_that_is_not_there_is_said(
    speeds: Any, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(["maps", "--only", "grandcam"])
    told = "no part grandcam; there are gradcam, rows, extraction, overlay"
    assert told in capsys.readouterr().err
