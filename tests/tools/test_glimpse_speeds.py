"""Glimpses timed on few tiny images: both ways must give the same, and the lines say so."""

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
    torch.manual_seed(0)
    made = importlib.import_module("benchmarks.glimpse_speeds")
    monkeypatch.setattr(made, "SECONDS", 0.0)
    return made


def test_the_plain_retina_sees_the_same_at_odd_sizes_too(speeds: Any) -> None:
    for case in (*speeds.RETINAS, speeds.RetinaCase(13, 5, 3, 2, 3, None)):
        plain, ours = speeds.retina_ways(case, batch=3)
        seen = ours()
        assert len(seen) == case.glimpses
        assert seen[0].shape == (3 * case.rollouts, case.scales, 1, case.glimpse, case.glimpse)
        torch.testing.assert_close(seen, plain())


def test_a_plain_retina_that_differs_is_refused(
    speeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = speeds.plain_retina

    def wrong(images: torch.Tensor, path: torch.Tensor, **options: int) -> list[torch.Tensor]:
        return other(images, path.flip(2), **options)

    monkeypatch.setattr(speeds, "plain_retina", wrong)
    with pytest.raises(AssertionError, match="not close"):
        speeds.retina_ways(speeds.RETINAS[0], batch=3)


def test_both_epochs_learn_from_the_same_loss(speeds: Any) -> None:
    data = speeds.MadeUpDigits(7)
    task = speeds.made_task(data)
    with torch.no_grad():
        task.critic.reading.weight.normal_()
    speeds.check_same_loss(task, data.digits, data.labels)
    task.policy_weight = 2.0
    with pytest.raises(AssertionError, match="not close"):
        speeds.check_same_loss(task, data.digits, data.labels)


def test_both_epochs_train_what_they_are_given(
    speeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speeds, "BATCH", 3)
    made: list[Any] = []
    make = speeds.made_task

    def remembered(data: Any) -> Any:
        made.append(make(data))
        return made[-1]

    monkeypatch.setattr(speeds, "made_task", remembered)
    for run, task in zip(reversed(speeds.epoch_ways(7)), made, strict=True):
        before = {name: value.clone() for name, value in task.named_parameters()}
        run()
        moved = {name for name, value in task.named_parameters() if not value.equal(before[name])}
        assert moved == {name for name, value in task.named_parameters() if value.requires_grad}


def test_a_line_for_each_retina_and_one_for_the_epoch(
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
    words = ["glimpses", "--rounds", "3", "--digits", "7", "--threads", "1", "--out", str(out)]
    assert tool.main(words) == 0
    _, retina, epoch = capsys.readouterr().out.splitlines()
    spent = r"plain \d+\.\d\d ms, ours \d+\.\d\d ms, \d+\.\d\d times as fast"
    assert re.fullmatch(
        rf"retina, 3 x 3 images of 13 px, 2 glimpses of 5 px at 2 scales: {spent} "
        r"\(\d+\.\d\d to \d+\.\d\d; at least 15 is meant\)",
        retina,
    )
    assert re.fullmatch(
        rf"training epoch of 7 digits, 6 glimpses of 8 px, 1 rollout: {spent} \(.*\)", epoch
    )
    assert [figure["floor"] for figure in json.loads(out.read_text())] == [15.0, None]
