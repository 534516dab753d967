"""Blocks timed on tiny features: what is timed is the same, and the table says what was found."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tool_modules import TOOLS, tool_module

from visattn.blocks.registry import create, names

TINY = ["--shapes", "2x64x7x5", "--rounds", "3", "--threads", "1"]


def part(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)  # as Python has it that runs a script there
    tool = tool_module("benchmark")
    monkeypatch.setattr(part("block_speeds"), "SECONDS", 0.0)
    return tool


@pytest.mark.parametrize("block", names())
def test_the_plain_version_gives_the_same(block: str, tool: ModuleType) -> None:
    check_same = part("block_speeds").check_same

    check_same(block)


def test_a_plain_version_that_differs_is_refused(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_speeds = part("block_speeds")

    monkeypatch.setitem(block_speeds.PLAIN, "se", block_speeds.PLAIN["simam"])
    with pytest.raises(ValueError, match=r"se: ours and the plain one differ by 0\.\d+"):
        block_speeds.check_same("se")


def test_every_block_has_a_plain_version_and_timms_are_ours(tool: ModuleType) -> None:
    speeds = part("block_speeds")
    assert set(speeds.PLAIN) == set(names())
    assert set(speeds.RIVALS) | set(speeds.PAIRS) <= set(names())


def test_timms_are_as_wide_as_ours(tool: ModuleType) -> None:
    """In weights of more than one axis; biases and norms differ."""
    for name, rival in part("rivals").RIVALS.items():
        ours, theirs = (
            sum(p.numel() for p in module.parameters() if p.ndim > 1)
            for module in (create(name, 64), rival(64, (14, 14)))
        )
        assert theirs == ours, name


def test_the_table_holds_every_shape_and_pass(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "speed.md", tmp_path / "speed.json"
    words = ["blocks", "--only", "se", "simam", *TINY, "--table", str(table), "--out", str(out)]
    assert tool.main(words) == 0
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
    assert [(one["block"], one["passed"]) for one in figures] == [
        (block, passed)
        for block in ("se", "simam")
        for passed in ("forward", "forward + backward")
    ]  # fmt: skip
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4


def test_what_takes_too_much_memory_is_left_out_and_said(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "speed.md"
    words = ["blocks", "--only", "nonlocal", "botnet", *TINY, "--memory", "0.0000001"]
    assert tool.main([*words, "--table", str(table)]) == 0
    page = table.read_text()
    assert re.search(
        r"^\| nonlocal \| \d+\.\d \| would take 0 GB \| would take 0 GB \|$", page, re.MULTILINE
    )
    assert re.search(r"^\| botnet \| would take 0 GB \| would take", page, re.MULTILINE)
    gigabytes_of_pairs = part("block_speeds").gigabytes_of_pairs

    assert gigabytes_of_pairs("nonlocal", "plain", (32, 256, 56, 56)) == pytest.approx(2.5, abs=0.1)


def test_ways_are_timed_in_turn_and_beside_ours(tool: ModuleType) -> None:
    in_turn = part("clocks").in_turn

    ran: list[str] = []
    ways = {name: (lambda name=name: ran.append(name)) for name in ("ours", "plain")}
    timings = in_turn(ways, 2, seconds_a_turn=0)
    assert ran == ["ours", "plain"] * 2 + ["plain", "ours", "ours", "plain"]
    assert timings["ours"][1:] == (1, 1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["bloks"],
            "no comparison bloks; there are training, search, blocks, glimpses, transformers",
        ),
        (["transformers", "--only", "sped"], "no part sped; there are speed, memory, rows, growth"),
        (["blocks", "search"], "blocks are timed alone"),
        (["search", "glimpses"], "glimpses are timed alone"),
        (["glimpses", "--digits", "-1"], "digits must be 0 or at least 128, a batch; got -1"),
        (["blocks", "--only", "sse", "see"], "no block see; there are se, "),
        (["blocks", "--shapes", "32x56x56"], "must be like 32x256x56x56, got '32x56x56'"),
    ],
)
def test_a_mistake_ends_with_a_sentence(
    words: list[str], said: str, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(words)
    assert said in capsys.readouterr().err
