"""Benchmark of blocks, on tiny features: implementations agree, and results are reported."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tool_modules import TOOLS, tool_module

from visattn.blocks.registry import create_block, list_blocks

TINY = ["--shapes", "2x64x7x5", "--rounds", "3", "--threads", "1"]


def benchmark_module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)  # as for a script in this folder
    tool = tool_module("benchmark")
    monkeypatch.setattr(benchmark_module("block_speeds"), "SECONDS", 0.0)
    return tool


@pytest.mark.parametrize("block", list_blocks())
def test_plain_version_matches(block: str, tool: ModuleType) -> None:
    check_same = benchmark_module("block_speeds").check_same

    check_same(block)


def test_differing_plain_version_raises(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    block_speeds = benchmark_module("block_speeds")

    monkeypatch.setitem(block_speeds.PLAIN, "se", block_speeds.PLAIN["simam"])
    with pytest.raises(ValueError, match=r"se: ours and the plain version differ by 0\.\d+"):
        block_speeds.check_same("se")


def test_every_block_has_a_plain_version(tool: ModuleType) -> None:
    speeds = benchmark_module("block_speeds")
    assert set(speeds.PLAIN) == set(list_blocks())
    assert set(speeds.RIVALS) | set(speeds.PAIRS) <= set(list_blocks())


def test_timm_blocks_have_equal_widths(tool: ModuleType) -> None:
    """In weights of more than one axis; biases and norms differ."""
    for name, rival in benchmark_module("rivals").RIVALS.items():
        ours, theirs = (
            sum(p.numel() for p in module.parameters() if p.ndim > 1)
            for module in (create_block(name, 64), rival(64, (14, 14)))
        )
        assert theirs == ours, name


def test_table_has_every_shape_and_pass(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "speed.md", tmp_path / "speed.json"
    arguments = ["blocks", "--only", "se", "simam", *TINY, "--table", str(table), "--out", str(out)]
    assert tool.main(arguments) == 0
    page = table.read_text()
    assert re.findall("^## .*", page, re.MULTILINE) == [
        "## Forward, 2 x 64 x 7 x 5",
        "## Forward + backward, 2 x 64 x 7 x 5",
    ]
    ratio = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"
    assert len(re.findall(rf"^\| se \| \d+\.\d \| {ratio} \| {ratio} \|$", page, re.MULTILINE)) == 2
    assert len(re.findall(rf"^\| simam \| \d+\.\d \| – \| {ratio} \|$", page, re.MULTILINE)) == 2
    assert "3 or more interleaved rounds" in page
    figures = json.loads(out.read_text())
    assert [(record["block"], record["passed"]) for record in figures] == [
        (block, passed)
        for block in ("se", "simam")
        for passed in ("forward", "forward + backward")
    ]  # fmt: skip
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4


def test_skips_what_needs_too_much_memory(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "speed.md"
    arguments = ["blocks", "--only", "nonlocal", "botnet", *TINY, "--max-memory", "0.0000001"]
    assert tool.main([*arguments, "--table", str(table)]) == 0
    page = table.read_text()
    assert re.search(r"^\| nonlocal \| \d+\.\d \| needs 0 GB \| needs 0 GB \|$", page, re.MULTILINE)
    assert re.search(r"^\| botnet \| needs 0 GB \| needs", page, re.MULTILINE)
    gigabytes_of_pairs = benchmark_module("block_speeds").gigabytes_of_pairs

    assert gigabytes_of_pairs("nonlocal", "plain", (32, 256, 56, 56)) == pytest.approx(2.5, abs=0.1)


def test_runs_are_interleaved(tool: ModuleType) -> None:
    in_turn = benchmark_module("clocks").in_turn

    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name)) for name in ("ours", "plain")}
    timings = in_turn(runs, 2, seconds_a_turn=0)
    assert calls == ["ours", "plain"] * 2 + ["plain", "ours", "ours", "plain"]
    assert timings["ours"][1:] == (1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bloks"],
            "there is no comparison bloks; choose from training, search, transformer-training",
        ),
        (
            ["transformers", "--only", "sped"],
            "there is no part sped; choose from speed, memory, rows",
        ),
        (["blocks", "search"], "blocks must be run alone"),
        (["search", "glimpses"], "glimpses must be run alone"),
        (
            ["glimpses", "--num-digits", "-1"],
            "--num-digits must be 0 or at least 128, a batch; got -1",
        ),
        (["blocks", "--only", "sse", "see"], "there is no block see; choose from se, "),
        (["blocks", "--shapes", "32x56x56"], "must be like 32x256x56x56, got '32x56x56'"),
    ],
)
def test_usage_errors_are_reported(
    arguments: list[str], message: str, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(arguments)
    assert message in capsys.readouterr().err
