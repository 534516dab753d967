"""Photos, weights and small data sets."""

from pathlib import Path

import pytest
from config_runs import use_small_data, write_shared_data
from net_cases import fill_net_sandbox


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
