"""Checkpoints as training writes them, without training."""

from typing import Any

from visattn.models.base import SmallEncoder
from visattn.models.config import model_config

MODEL = SmallEncoder((16, 24), channels=8)


def checkpoint(step: int = 3, **more: Any) -> dict[str, Any]:
    """Return the content of a checkpoint of a small model after this many steps."""

    def progress(*names: str) -> dict[str, dict[str, int]]:
        return {part: dict.fromkeys(names, step) for part in ("total", "current")}

    batches, steps = ("ready", "started", "processed", "completed"), ("ready", "completed")
    loop = {
        "state_dict": {},
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_progress": progress(*batches),
        "epoch_loop.batch_progress": progress(*batches) | {"is_last_batch": False},
        "epoch_loop.val_loop.batch_progress": progress(*batches) | {"is_last_batch": False},
        "epoch_loop.scheduler_progress": progress(*steps),
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {}},
    }
    return {
        "epoch": 0,
        "global_step": step,
        "visattn": {"model": model_config(MODEL), "seed": 7},
        "state_dict": {
            f"model.{name}": tensor.clone() for name, tensor in MODEL.state_dict().items()
        },
        "loops": {"fit_loop": loop},
        "callbacks": {},
        "optimizer_states": [{"state": {}, "param_groups": []}],
        "lr_schedulers": [{"last_epoch": step}],
        **more,
    }
