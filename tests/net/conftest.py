"""Values that must not change: `make net` writes it anew, to be looked at in the difference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from config_runs import use_small_data, write_shared_data
from kept_values import TOLERANCE, Keep, differences, write
from net_cases import fill_net_sandbox


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Keep:
    """Compare plain values, arrays and tensors with kept/NAME.json, or write them."""
    writing = request.config.getoption("--write-golden")

    def check(
        name: str, values: Any, tolerance: float = TOLERANCE, exact_only: Sequence[str] = ()
    ) -> None:
        if writing:
            write(name, values)
        elif lines := differences(name, values, tolerance, exact_only):
            shown = "\n".join(lines[:11])
            pytest.fail(f"{len(lines)} values differ from kept/{name}.json:\n{shown}")

    return check


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos and weights for the commands."""
    folder = tmp_path_factory.mktemp("sandbox")
    fill_net_sandbox(folder)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small data sets in the layout of VISATTN_DATA."""
    folder = tmp_path_factory.mktemp("data")
    write_shared_data(folder)
    return folder


@pytest.fixture
def small_data(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See `use_small_data`."""
    use_small_data(monkeypatch, shared, tmp_path)
