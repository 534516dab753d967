"""The first twenty losses of every config."""

from pathlib import Path

import pytest
from classification_data import accept_test_cifar_files
from config_runs import CONFIGS, TRAINED, small_run, write_shared_data
from kept_values import Keep
from loss_log import LOSSES

from visattn.cli import main

STEPS = 20
# Rounding grows with each step, of some networks to other trainings: later losses are compared on
# the machine that wrote them.
FIRST, TOLERANCE = 3, 1e-2
LOGGED = (
    "--trainer.callbacks+=loss_log.LossLog --trainer.limit_val_batches=0"
    f" --trainer.max_steps={STEPS} --trainer.max_epochs={STEPS} --trainer.logger=false"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shared_data(folder)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in TRAINED else pytest.mark.slow)
        for path in CONFIGS
    ],
)
def test_first_losses(
    config: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    monkeypatch.setenv("VISATTN_DATA", str(shared))
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "loss_log")
    accept_test_cifar_files(monkeypatch)
    monkeypatch.chdir(tmp_path)
    LOSSES.clear()
    assert main(["fit", *small_run(config), *LOGGED.split(), "--run", str(tmp_path / "run")]) == 0
    losses = {"first": LOSSES[:FIRST], "later": LOSSES[FIRST:]}
    keep(f"losses/{config.stem}", losses, TOLERANCE, exact_only=["later"])
