"""A tiny config and a finished run, shared by the tests of the session."""

from pathlib import Path

import pytest
from task_runs import of, tiny_run

from visattn.cli import main


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config that trains within seconds."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(tiny_run(of("CaptionPanels", images=1, width=480)))
    return path


@pytest.fixture(scope="session")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, shared by tests, which must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["visattn"])
        assert main(["fit", "--config", str(tiny), "--run", str(folder)]) == 0
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The best checkpoint, in a folder of its own."""
    path = tmp_path / "copy" / "checkpoints" / "best.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes((run / "checkpoints" / "best.ckpt").read_bytes())
    return path


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the arguments that LightningCLI reads, and a working directory for runs."""
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.chdir(tmp_path)
