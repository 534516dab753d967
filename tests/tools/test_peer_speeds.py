"""Benchmarks beside other libraries: their algorithms give our maps; rows say how they differ."""

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tool_modules import TOOLS
from torch import nn


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("library", ["vit-explain", "row by row", "timm"])
def test_algorithms_that_are_written_out_give_our_maps(benchmarks: Any, library: str) -> None:
    torch.manual_seed(0)
    model, image = timm.create_model("test_vit").eval(), torch.randn(1, 3, 160, 160)
    method = "attention" if library == "timm" else "rollout"
    runs = benchmarks("peer_runs")
    ours = runs.of_visattn(model, image, method, 1)()
    theirs = runs.LIBRARIES[library](model, image, method, 1)()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_the_plain_loop_of_rise_gives_our_map(benchmarks: Any) -> None:
    torch.manual_seed(0)
    model, image = timm.create_model("test_efficientnet").eval(), torch.randn(1, 3, 160, 160)
    runs = benchmarks("peer_runs")
    ours, theirs = (
        runs.LIBRARIES[library](model, image, "rise", 1)() for library in ("visattn", "plain loop")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_rows_have_the_difference_of_maps_between_0_and_1(benchmarks: Any, tmp_path: Path) -> None:
    speeds = benchmarks("peer_speeds")
    maps = torch.rand(1, 5, 7)
    assert speeds.largest_difference(maps, 3 * maps + 1) in ("0e+00", "1e-07", "6e-08", "2e-07")
    large = torch.nn.functional.interpolate(maps[:, None], (10, 14), mode="bilinear")[:, 0]
    assert speeds.largest_difference(maps, large) == "0e+00"
    pair = (1.0, 2.0)
    row = speeds.PeerRow("gradcam", "net@64", "peer", pair, pair, 2.0, 1.9, 2.1, pair, "1e-07")
    speeds.write_table([row], tmp_path / "peers.csv", "01234567 2026-11-26")
    [line] = csv.DictReader((tmp_path / "peers.csv").read_text().splitlines())
    assert line["network"] == "net, 64 px"
    assert (line["later, s"], line["rounds"]) == ("1.000, 2.000", "1.90 to 2.10")


def test_the_changed_share_of_a_network_is_counted_in_cells(benchmarks: Any) -> None:
    shares = benchmarks("changed_shares")
    model = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1, bias=False))
    share = shares.changed_share("net", model, torch.rand(1, 3, 8, 8) + 1, 8)
    assert (share.changed, share.limit) == (1.0, 1.0)  # the first window hides the image
    before, after = torch.zeros(2, 1, 2, 4, 5)
    after[0, 1, 1, 2] = after[0, 0, 2, 2] = 1
    assert shares.changed_area(before, after) == 2 / 20


def test_a_plain_training_step_has_our_loss(
    benchmarks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = benchmarks("training_speeds")
    for size, value in {"IMAGES": 2, "QUESTIONS": 3}.items():
        monkeypatch.setattr(speeds, size, value)
    comparison = speeds.vqa_training()  # compares the losses
    torch.testing.assert_close(comparison.ours(), comparison.plain(), atol=1e-4, rtol=1e-4)
