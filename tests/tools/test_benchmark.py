"""Benchmarks: processes take turns, and rows say how times and values differ."""

import csv
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tool_modules import tool_module
from torch import nn


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("benchmark")


class Fake:
    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns = name, turns

    def take_turn(self) -> None:
        self.turns.append(self.name)


def test_processes_take_turns_in_alternating_order(tool: ModuleType) -> None:
    turns: list[str] = []
    tool.interleave([Fake("ours", turns), Fake("theirs", turns)], 3)
    assert turns == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_ratio_is_the_median_over_rounds_of_the_other_by_the_first(tool: ModuleType) -> None:
    cells = tool.ratio([1.0, 1.0, 2.0], [3.0, 1.0, 5.0])
    assert cells == {"ratio of times": "2.50", "rounds": "1.00 to 3.00"}


def test_maps_are_compared_between_0_and_1_and_from_edge_to_edge(tool: ModuleType) -> None:
    maps = torch.rand(1, 5, 7)
    assert tool.largest_difference(maps, 3 * maps + 1) < 1e-6
    large = nn.functional.interpolate(maps[:, None], (10, 14), mode="bilinear")[:, 0]
    assert tool.largest_difference(maps, large) < 1e-6
    changed = maps.clone()
    changed.view(-1)[changed.argmax()] = maps.min()
    assert tool.largest_difference(maps, changed) > 0.9


@pytest.mark.slow  # a new process, which imports visattn
def test_a_process_computes_a_map_in_each_turn(tool: ModuleType, tmp_path: Path) -> None:
    with tool.map_worker("visattn", "gradcam", "resnet18@64", 1, str(tmp_path)) as worker:
        worker.take_turn()
        worker.take_turn()
    assert worker.first["seconds"] > 0
    assert len(worker.seconds) == 2
    assert min(worker.seconds) > 0
    assert (tmp_path / "visattn").is_file()
    assert worker.process.returncode == 0


def test_a_failed_process_is_quoted(tool: ModuleType) -> None:
    with (
        pytest.raises(RuntimeError, match=r"photos caption nowhere failed:\n"),
        tool.Worker("photos", "caption", "nowhere", python="false"),
    ):
        raise AssertionError("the process has no first answer")


def test_rows_are_printed_and_written_with_commit_and_date(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"map": "gradcam", "ratio of times": "2.00"}, {"map": "rise", "ratio of times": "1.00"}]
    tool.write_rows(rows, tmp_path / "a.csv")
    assert capsys.readouterr().out.splitlines()[0] == "map: gradcam | ratio of times: 2.00"
    written = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["map"] for row in written] == ["gradcam", "rise"]
    assert len(written[0]["measured"].split()) == 2


def test_missing_libraries_are_reported(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "PEERS", Path("nowhere"))
    with pytest.raises(FileNotFoundError, match="torchcam is not installed .*: run make peers"):
        tool.map_worker("torchcam", "gradcam", "resnet18@64", 1, "")
    with pytest.raises(SystemExit, match="2"):
        tool.main(["peers", "--only", "gradcan"])
    assert "invalid choice: 'gradcan'" in capsys.readouterr().err
