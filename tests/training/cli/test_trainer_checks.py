"""Precisions and strategies that change or split the weights are refused before the start."""

from types import SimpleNamespace

import pytest

from visattn.training.cli.checks import check_trainer


@pytest.mark.parametrize(
    "precision", ["16-true", "bf16-true", "64-true", "64", "transformer-engine"]
)
def test_weights_stay_in_float32(precision: str) -> None:
    with pytest.raises(ValueError, match=f"^trainer.precision must be .*, got {precision}:"):
        check_trainer(SimpleNamespace(precision=precision, strategy="auto"))


@pytest.mark.parametrize(
    "strategy",
    [
        "fsdp",
        "fsdp_cpu_offload",
        "deepspeed_stage_2",
        SimpleNamespace(class_path="lightning.pytorch.strategies.ModelParallelStrategy"),
    ],
)
def test_strategies_that_shard_weights_are_refused(strategy: object) -> None:
    with pytest.raises(ValueError, match="^trainer.strategy must be ddp .* its checkpoints"):
        check_trainer(SimpleNamespace(precision=None, strategy=strategy))


def test_usual_options_are_accepted() -> None:
    for precision in (None, "32-true", "32", 16, "16-mixed", "bf16-mixed", "bf16"):
        for strategy in ("auto", "ddp", "ddp_find_unused_parameters_true"):
            check_trainer(SimpleNamespace(precision=precision, strategy=strategy))
