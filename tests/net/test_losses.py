"""The first twenty losses of every config."""

from pathlib import Path

import pytest
from config_runs import CONFIGS, TRAINED, small_run
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


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in TRAINED else pytest.mark.slow)
        for path in CONFIGS
    ],
)
@pytest.mark.usefixtures("small_data")
def test_first_losses(config: Path, tmp_path: Path, keep: Keep) -> None:
    assert main(["fit", *small_run(config), *LOGGED.split(), "--run", str(tmp_path / "run")]) == 0
    losses = {"first": LOSSES[:FIRST], "later": LOSSES[FIRST:]}
    keep(f"losses/{config.stem}", losses, TOLERANCE, exact_only=["later"])
