"""Benchmark of glimpses, on tiny images: both implementations agree."""

import importlib
import json
import re
from dataclasses import replace
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
    torch.manual_seed(0)
    created = importlib.import_module("benchmarks.glimpse_speeds")
    monkeypatch.setattr(created, "SECONDS", 0.0)
    return created


def test_plain_retina_matches(speeds: Any) -> None:
    for case in (*speeds.RETINAS, speeds.RetinaCase(13, 5, 3, 2, 3, None)):
        plain, ours = speeds.retina_runs(case, batch=3)
        glimpses = ours()
        assert len(glimpses) == case.glimpses
        assert glimpses[0].shape == (3 * case.rollouts, case.scales, 1, case.glimpse, case.glimpse)
        torch.testing.assert_close(glimpses, plain())


def test_differing_plain_retina_raises(speeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = speeds.plain_retina

    def wrong(images: torch.Tensor, path: torch.Tensor, **options: int) -> list[torch.Tensor]:
        return original(images, path.flip(2), **options)

    monkeypatch.setattr(speeds, "plain_retina", wrong)
    with pytest.raises(AssertionError, match="not close"):
        speeds.retina_runs(speeds.RETINAS[0], batch=3)


def test_losses_match(speeds: Any) -> None:
    data = speeds.RandomDigits(7)
    task = speeds.build_task(data)
    with torch.no_grad():
        task.value_baseline.output.weight.normal_()
    speeds.check_same_loss(task, data.digits, data.labels)
    task.loss_options = replace(task.loss_options, policy_loss_weight=2.0)
    with pytest.raises(AssertionError, match="not close"):
        speeds.check_same_loss(task, data.digits, data.labels)


def test_both_epochs_train_all_parameters(speeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "BATCH", 3)
    created: list[Any] = []
    make = speeds.build_task

    def build_and_store(data: Any) -> Any:
        created.append(make(data))
        return created[-1]

    monkeypatch.setattr(speeds, "build_task", build_and_store)
    for run, task in zip(reversed(speeds.epoch_runs(7)), created, strict=True):
        before = {name: value.clone() for name, value in task.named_parameters()}
        run()
        changed = {name for name, value in task.named_parameters() if not value.equal(before[name])}
        assert changed == {name for name, value in task.named_parameters() if value.requires_grad}


def test_prints_a_line_per_retina_and_epoch(
    speeds: Any,
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speeds, "BATCH", 3)
    monkeypatch.setattr(speeds, "RETINAS", (speeds.RetinaCase(13, 5, 2, 2, 3, 15.0),))
    in_turn = speeds.in_turn
    monkeypatch.setattr(speeds, "in_turn", lambda ways, rounds, **_: in_turn(ways, rounds))
    out = tmp_path / "speed.json"
    arguments = [
        "glimpses",
        "--rounds",
        "3",
        "--num-digits",
        "7",
        "--threads",
        "1",
        "--out",
        str(out),
    ]
    assert tool.main(arguments) == 0
    _, retina, epoch = capsys.readouterr().out.splitlines()
    seconds = r"plain \d+\.\d\d ms, ours \d+\.\d\d ms, \d+\.\d\d times as fast"
    assert re.fullmatch(
        rf"retina, 3 x 3 images of 13 px, 2 glimpses of 5 px at 2 scales: {seconds} "
        r"\(\d+\.\d\d to \d+\.\d\d; target: 15 or more\)",
        retina,
    )
    assert re.fullmatch(
        rf"training epoch of 7 digits, 6 glimpses of 8 px, 1 rollout: {seconds} \(.*\)", epoch
    )
    assert [figure["floor"] for figure in json.loads(out.read_text())] == [15.0, None]
