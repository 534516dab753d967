"""A tiny config and a finished run, shared by the tests of the session."""

from pathlib import Path

import pytest
from task_configs import MODEL

from visattn.cli import main

TINY = (
    MODEL
    + """\
trainer:
  accelerator: cpu
  max_epochs: 2
  max_steps: 4
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  callbacks:
    - class_path: CaptionPanels
      init_args: {images: 1, width: 480}
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: SceneCaptions
      init_args:
        {image_size: 24, train: 3, val: 3, test: 11}
    batch_size: 7
    num_workers: 0
"""
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config that trains within seconds."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, shared by tests, which must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["visattn"])
        assert main(["fit", "--config", str(tiny), "--run", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the arguments that LightningCLI reads, and a working directory for runs."""
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.chdir(tmp_path)
