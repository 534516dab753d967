"""The first twenty losses of every config."""

from pathlib import Path

import pytest
from config_runs import CONFIGS, TRAINED, small_run
from kept_values import EXACT, Keep
from loss_log import LOSSES

from visattn.cli import main

STEPS = 20
# Rounding grows with each step, of some networks to other trainings: later losses are compared on
# the machine that wrote them, and computed only to be written or compared there.
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
def test_first_losses(
    config: Path, tmp_path: Path, keep: Keep, request: pytest.FixtureRequest
) -> None:
    # The schedule of the learning rate follows max_steps, so the run is stopped, not shortened.
    steps = STEPS if EXACT or request.config.getoption("--write-golden") else FIRST
    words = [*small_run(config), *LOGGED.split(), f"--trainer.callbacks.last={steps}"]
    assert main(["fit", *words, "--run", str(tmp_path / "run")]) == 0
    assert len(LOSSES) == steps
    losses = {"first": LOSSES[:FIRST], "later": LOSSES[FIRST:]}
    keep(f"losses/{config.stem}", losses, TOLERANCE, exact_only=["later"])
