"""Benchmark of maps, at small sizes: all implementations agree."""

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
    monkeypatch.syspath_prepend(TOOLS)  # as for a script in this folder
    return tool_module("benchmark")


@pytest.fixture
def speeds(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark of maps, at small sizes."""
    torch.manual_seed(0)
    module = importlib.import_module("benchmarks.map_speeds")
    transformers = importlib.import_module("benchmarks.transformer_speeds")
    case = transformers.RECORDED._replace(title="Ti/16", preset="tiny", batch=1)
    monkeypatch.setattr(transformers, "RECORDED", case)
    monkeypatch.setattr(transformers, "SECONDS", 0.0)
    small = {"CNN": "resnet18", "IMAGES": 2, "SIDE": 64, "PHOTO": (256, 341), "SECONDS": 0.0}
    for name, value in {**small, "VIT": "test_vit", "VIT_IMAGES": 1}.items():
        monkeypatch.setattr(module, name, value)
    cams = importlib.import_module("benchmarks.cam_speeds")
    monkeypatch.setattr(cams, "PYTHON", Path("no-peers"))  # as without make peers
    peaks = {"plain": 2.0, "recorded": 3.0, "extracted": 12.0}
    monkeypatch.setattr(module, "map_memory", lambda method, *_: peaks[method])
    return module


def test_each_part_returns_its_figures(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    parts = ["--only", "gradcam", "channels", "rows", "extraction", "overlay"]
    assert tool.main(["maps", *parts, "--rounds", "1", "--threads", "1", "--out", str(out)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    titles = [
        "Grad-CAM, resnet18, 2 images, s; plain / ours",
        "Ti/16, 1 images, forward, s; class rows of all layers recorded (0.03 MiB an image)",
        "test_vit, 1 images, s; class rows of all layers recorded / not",
        "test_vit, 1 images, s; timm's unfused extraction / ours",
        "test_vit, 1 images, s beyond plain; timm's unfused extraction / ours",
        "test_vit, 1 images, MB stored; extracted / ours",
        "test_vit, 1 images, MB at most; extracted / ours",
        "overlay, 0.1 megapixels, array to array, s",
    ]
    assert [line[: len(title)] for line, title in zip(lines, titles, strict=True)] == titles
    assert re.search(
        r"ours \d+\.\d+, plain \d+\.\d+; \d+\.\d+ \(.*; target: at most 1\.1", lines[2]
    )
    stored, peak = json.loads(out.read_text())[5:7]
    assert stored["ratio"] == 1 + 10 * 10  # all rows, and not one
    assert peak["ratio"] == 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports peak memory")
def test_memory_is_measured_in_a_separate_process(tool: ModuleType) -> None:
    memories = importlib.import_module("benchmarks.map_memories")
    assert 0 < memories.map_memory("extracted", "test_vit", 2) < 500


def test_differing_implementations_raise(speeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(_: Any, images: torch.Tensor, __: Any) -> torch.Tensor:
        return torch.zeros(len(images), 2, 2)

    monkeypatch.setattr(speeds, "gradcam", zeros)
    with pytest.raises(AssertionError, match="plain"):
        next(speeds.gradcam_speed(1))


def test_unknown_part_is_reported(
    speeds: Any, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(["maps", "--only", "grandcam"])
    message = "no part grandcam; choose from gradcam, channels, rows, extraction, overlay"
    assert message in capsys.readouterr().err
