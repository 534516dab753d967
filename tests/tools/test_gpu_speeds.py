"""The table of a GPU, as a dry run on the CPU, and on a GPU its parts that take seconds."""

import importlib
from typing import Any

import pytest
import torch
from tool_modules import TOOLS


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("benchmarks.gpu_speeds")


@pytest.fixture(autouse=True)
def _precision() -> Any:
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


def test_a_dry_run_needs_no_gpu_and_says_so(speeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("VISATTN_DATA", raising=False)
    assert "figures have no meaning" in speeds.table_head(dry=True)
    rows = list(speeds.gpu_figures(("kernels", "epochs"), rounds=1))
    assert [row.part for row in rows] == ["kernels", "epochs", "epochs"]
    assert "flash_attention_for_cpu" in rows[0].value
    assert rows[1].value == "not run: no folder MNIST in VISATTN_DATA"
    assert str(rows[0]).count("|") == 6


@pytest.mark.compile
def test_steps_and_loader_of_a_dry_run_are_compared(
    speeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = list(speeds.gpu_figures(("vit", "loader"), rounds=1))
    assert [row.part for row in rows] == ["vit"] * 5 + ["loader"]
    assert "time / ours compiled" in rows[1].ratio
    assert "loader / compiled step" in rows[5].ratio


@pytest.mark.gpu
def test_steps_on_a_gpu_wait_twice_at_most_and_run_a_flash_kernel(speeds: Any) -> None:
    for row in speeds.gpu_figures(("step",), rounds=1):
        assert int(row.value.split()[0]) <= 2, str(row)
    [row] = speeds.gpu_figures(("kernels",), rounds=1)
    assert "flash" in row.value or "fort" in row.value, str(row)
