"""Benchmark of transformers, at small sizes: the models agree."""

import importlib
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from tool_modules import TOOLS, tool_module

from visattn.models.vit.vision_transformer import VisionTransformer


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)  # as for a script in this folder
    return tool_module("benchmark")


@pytest.fixture
def benchmark_module(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a benchmark module, at small sizes."""
    torch.manual_seed(0)
    speeds, rivals, growth = (
        importlib.import_module(f"benchmarks.{name}")
        for name in ("transformer_speeds", "transformer_rivals", "attention_growth")
    )
    case = rivals.TransformerCase("Ti/16", "tiny", "vit_tiny_patch16_224", 1)
    monkeypatch.setattr(speeds, "CASES", (case,))
    monkeypatch.setattr(speeds, "RECORDED", case)
    monkeypatch.setattr(speeds, "SECONDS", 0.0)
    monkeypatch.setattr(growth, "SIDES", (7, 11, 14))
    monkeypatch.setattr(growth, "SECONDS", 0.0)
    return importlib.import_module


def test_figures_of_speed_rows_and_growth(
    benchmark_module: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, out = tmp_path / "growth.md", tmp_path / "figures.json"
    arguments = [
        "transformers",
        "--only",
        "speed",
        "rows",
        "growth",
        "--rounds",
        "1",
        "--threads",
        "1",
    ]
    assert tool.main([*arguments, "--table", str(page), "--out", str(out)]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    number = r"\d+\.\d+"
    timm_lines = [line for line in lines if "timm / ours" in line]
    assert len(timm_lines) == 2
    for line, passed in zip(timm_lines, (r"forward", r"forward \+ backward"), strict=True):
        assert re.fullmatch(
            rf"Ti/16, 1 images, {passed}, s; timm / ours: ours {number}, timm {number}; {number} "
            rf"\({number} to {number}; target: at least 0.97\)",
            line,
        )
    (rows,) = [line for line in lines if "recorded" in line]
    stored = 12 * 3 * 197 * 4 / 2**20  # layers, heads, columns, bytes
    assert f"({stored:.2f} MiB an image) / not: ours" in rows
    assert len(json.loads(out.read_text())) == len(lines)
    text = page.read_text()
    assert "| tokens | full | window | neighborhood | linear |" in text
    assert [row.split(" ")[1] for row in re.findall(r"^\| \d+ .*", text, re.MULTILINE)] == [
        "49",
        "121",
        "196",
    ]
    assert "![Milliseconds over tokens, both by powers of ten](growth.png)" in text
    with Image.open(tmp_path / "growth.png") as image:
        assert image.width > 600


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports peak memory")
def test_memory_is_measured_in_a_separate_process(benchmark_module: Any) -> None:
    rivals, memories = (
        benchmark_module("benchmarks.transformer_rivals"),
        benchmark_module("benchmarks.peak_memories"),
    )
    peak = memories.peak_memory("ours", rivals.CASES[1]._replace(batch=1))
    weights = 5_717_416 * 4 / 2**20
    assert weights < peak < 20 * weights  # gradients and activations, but not this process


def test_failed_process_raises(benchmark_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals, memories = (
        benchmark_module("benchmarks.transformer_rivals"),
        benchmark_module("benchmarks.peak_memories"),
    )
    monkeypatch.setattr(memories, "STATUS", Path(__file__))
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="process that measures memory failed"):
        memories.peak_memory("ours", rivals.CASES[1])
    monkeypatch.setattr(memories, "STATUS", Path("nowhere"))
    assert memories.peak_memory("ours", rivals.CASES[1]) is None


def test_differing_model_raises(benchmark_module: Any) -> None:
    theirs = timm.create_model("test_vit")
    ours = VisionTransformer.from_timm(theirs)
    check_same = benchmark_module("benchmarks.transformer_rivals").check_same
    check_same(ours, theirs)
    ours.get_parameter("blocks.0.attn.proj.weight").data.zero_()
    with pytest.raises(AssertionError, match="not close"):
        check_same(ours, theirs)


def test_slopes_are_exponents_and_labels_do_not_overlap(benchmark_module: Any) -> None:
    growth = benchmark_module("benchmarks.attention_growth")
    tokens = (100, 1000, 10000)
    square = growth.Growth("full", tokens, tuple((1e-6 * n) ** 2 for n in tokens))
    line = growth.Growth("linear", tokens, tuple(1e-6 * n for n in tokens))
    assert square.slope == pytest.approx(2)
    assert square.last == pytest.approx(2)
    assert line.slope == pytest.approx(1)
    low, high, other = growth.label_positions([square, line, line])
    assert low < high < other
    assert high == pytest.approx(10.0)
