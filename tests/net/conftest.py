"""Small data sets."""

from pathlib import Path

import pytest
from config_runs import use_small_data, write_shared_data


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
