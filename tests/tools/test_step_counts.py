"""Operations and host syncs of training steps."""

import importlib
from typing import Any

import pytest
import torch
from tool_modules import TOOLS


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("benchmarks.step_counts")


def test_counter_names_every_way_to_wait_for_a_device(
    counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, mask = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])
    with counts.OpCounter() as counter:
        numbers[mask]
        numbers.sum().item()
        mask.nonzero()
        numbers.tolist()
        torch.tensor(3.0)
        numbers[torch.tensor([0, 2])]  # indices: no sync, but their copy to the device is one
        numbers[:2].add(1)
    assert counter.syncs == {
        "index": 1, "_local_scalar_dense": 1, "nonzero": 1, "tolist": 1, "lift_fresh": 2,
    }  # fmt: skip
    assert counter.ops["add"] == 1
    assert "slice" not in counter.ops


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`")
def test_steps_wait_twice_at_most_and_the_average_takes_a_few_operations(counts: Any) -> None:
    for count in counts.step_counts(counts.MODELS):
        assert count.syncs <= 2, str(count)
        assert count.ema_ops <= 10, str(count)  # the target is 40
        assert count.ema_syncs <= 1, str(count)  # the number of updates, in host memory
        assert count.ops > 100, str(count)
