"""Callbacks of a run: stop at NaN, averages of weights, checkpoints, `run.json` and scores."""

import json
import math
import os
import platform
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

# pyright: reportPrivateImportUsage=false
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from visattn import __version__
from visattn.images.formats import encode_png
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import read_json

_PACKAGE = Path(__file__).resolve().parents[1]
RUN_RECORD = "run.json"
"""File in the folder of a run."""


class StopAtNonFinite(Callback):
    """Stop at gradients that are NaN or infinite, before they reach the weights."""

    def __init__(self) -> None:
        self._loss: Tensor | float = 0.0

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Accumulate the losses of a step, without synchronizing with the GPU."""
        self._loss = self._loss + loss.detach()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the gradients, which are equal in all processes, so that all of them stop.

        Raises:
            FloatingPointError: If one is not finite.
        """
        # A finite loss may have infinite gradients. The gradient scaler of fp16 skips such steps.
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        gradients = [each.grad for each in pl_module.parameters() if each.grad is not None]
        loss, self._loss = torch.as_tensor(self._loss), 0.0
        norm = loss if scaled else get_total_norm(gradients)
        values = torch.stack([norm.double(), loss.to(norm.device, torch.float64)]).tolist()
        if not math.isfinite(values[0]):
            raise FloatingPointError(
                f"the gradients of step {trainer.global_step} are not finite (loss {values[1]:g}); "
                "checkpoints have earlier weights. Lower the learning rate, clip gradients "
                "(--trainer.gradient_clip_val), or check the data of this step"
            )


class EMA(WeightAveraging):
    """Exponential moving average of the weights, for validation, checkpoints and export.

    It is Lightning's `EMAWeightAveraging` with a decay that warms up.

    Args:
        decay: Decay per step; the average covers about `1 / (1 - decay)` steps.
        use_warmup: Whether the decay is lower in the first steps, at most `(1 + n) / (10 + n)`
            after n steps.

    Raises:
        ValueError: If decay is not between 0 and 1.
    """

    def __init__(self, decay: float = 0.998, *, use_warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay
        self.use_warmup = use_warmup
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the average; only one is allowed, since both would swap weights in and out."""
        check_single_average(trainer.callbacks)  # type: ignore[attr-defined]
        super().setup(trainer, pl_module, stage)

    def _average(self, averages: list[Tensor], values: list[Tensor], updates: Tensor) -> None:
        """Update averages of one dtype in place; integers are copied."""
        if not averages[0].is_floating_point():
            torch._foreach_copy_(averages, values)
            return
        n = int(updates)
        decay = min(self.decay, (1 + n) / (10 + n)) if self.use_warmup else self.decay
        # Exact for equal values, so that frozen weights and their cached features stay valid.
        torch._foreach_lerp_(averages, values, 1 - decay)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap in the averaged weights."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap back the trained weights."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Swap back the trained weights, for the checkpoint of an interrupted run."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)


def check_single_average(callbacks: Sequence[Callback]) -> None:
    """Check that there is only one average, since several would swap weights in the wrong order."""
    if sum(isinstance(each, WeightAveraging) for each in callbacks) > 1:
        raise ValueError("trainer.callbacks must have only one average of the weights")


class BestCheckpoint(ModelCheckpoint):
    """Save the state with the best score of a run as `best.ckpt`."""

    def __init__(self, folder: Path, monitor: str, mode: str) -> None:
        super().__init__(
            folder,
            "best",
            monitor=monitor,
            mode=mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best score, also in a folder that was moved or copied."""
        file = Path(str(self.dirpath), "best.ckpt")
        score = state_dict["best_model_score"]
        if file.is_file() and score is not None:
            moved = {
                "dirpath": self.dirpath, "best_model_path": str(file),
                "kth_best_model_path": str(file), "best_k_models": {str(file): score},
            }  # fmt: skip
            super().load_state_dict({**state_dict, **moved})


class LastCheckpoint(Checkpoint):
    """Save the newest state of a run to `last.ckpt`, from which it resumes exactly.

    It is written after each validation and epoch, every few minutes, and when SIGTERM or Ctrl-C
    ends the run. `ModelCheckpoint` supports only one of these, and skips the end of a run between
    two validations.
    """

    def __init__(self, file: Path, minutes: float = 10.0) -> None:
        self.file = file
        self.minutes = minutes
        self._time = 0.0
        self._saved = -1
        self._stopped = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer; the first Ctrl-C ends the run after the current batch, like SIGTERM."""
        self._time = time.monotonic()
        if trainer.world_size == 1 and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _end)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the state every few minutes, but not between accumulated batches."""
        loop, signals = trainer.fit_loop, trainer._signal_connector  # noqa: SLF001
        if loop._should_accumulate():  # noqa: SLF001
            self._stopped |= signals.received_sigterm  # only after the optimizer step
            signals.received_sigterm = False
            return
        signals.received_sigterm |= self._stopped
        due = bool(self.minutes) and time.monotonic() - self._time >= 60 * self.minutes
        due = trainer.strategy.reduce_boolean_decision(due, all=False)  # clocks differ
        # At the end of an epoch, and before a validation, other hooks save.
        epoch = loop.epoch_loop
        follows = epoch._should_check_val_fx(loop._data_fetcher)  # type: ignore[arg-type] # noqa: SLF001
        if due and not follows and not epoch.batch_progress.is_last_batch:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the state after a validation within an epoch."""
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not last:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the state after an epoch."""
        self._save(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save the state of a run that a signal ends; after an error the previous one is kept."""
        loop = trainer.fit_loop
        new = loop.total_batch_idx != self._saved and not loop._should_accumulate()  # noqa: SLF001
        if isinstance(exception, SIGTERMException) and trainer.state.fn == "fit" and new:
            self._save(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the handler of Ctrl-C."""
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _save(self, trainer: Any) -> None:
        if not trainer.fast_dev_run:
            trainer.save_checkpoint(self.file, weights_only=False)
        self._time = time.monotonic()
        self._saved = trainer.fit_loop.total_batch_idx


def _end(*_: Any) -> None:
    """Handle the first Ctrl-C like SIGTERM; the next one interrupts at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGTERM)


class RunRecorder(Callback):
    """Write `run.json`, with settings and times of a run, and the scores of `validate` and `test`.

    Keys of `run.json` are `config`, `seed`, `fit`, and `test` and `validate` with the scored data;
    `shared` is the number of test photos that are also validation photos. Times are summed over all
    sessions of a resumed run, until the last checkpoint of each. The scores, with the texts and
    numbers of the task's notes, are `validate.json` or `test.json`; images among the notes become
    PNG files, others JSON files of their own.

    Args:
        folder: Folder of the run.
        source: Name of the config, and the seed.
        data: Settings of the data.
    """

    def __init__(self, folder: Path, source: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self.folder = folder
        self.source = source
        self.data = data
        self._before: dict[str, Any] = {}
        self._started = (0.0, 0.0)
        self._step: int | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a session."""
        self._before = self._read()
        self._started = _seconds()
        self._write_fit(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the duration of the session so far."""
        self._write_fit(trainer, pl_module)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remember the step of the scored checkpoint."""
        self._step = checkpoint.get("global_step")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the duration of the session."""
        self._write_fit(trainer, pl_module)

    def _write_fit(self, trainer: Trainer, pl_module: Any) -> None:
        past = self._before.get("fit", {})
        wall, cpu = (now - then for now, then in zip(_seconds(), self._started, strict=True))
        device = trainer.strategy.root_device
        scores = {
            str(each.monitor): float(each.best_model_score)
            for each in trainer.checkpoint_callbacks
            if isinstance(each, BestCheckpoint) and each.best_model_score is not None
        }
        part = {
            "commits": list(dict.fromkeys([*past.get("commits", []), _commit()])),
            "started": past.get("started") or _now(),
            "sessions": past.get("sessions", 0) + 1,
            "steps": trainer.global_step,
            "parameters": sum(each.numel() for each in pl_module.model.parameters()),
            "wall_seconds": past.get("wall_seconds", 0) + wall,
            "cpu_seconds": past.get("cpu_seconds", 0) + cpu,
            "best": scores or None,
            "machine": {
                "cpu": _cpu_model(),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                "processes": trainer.world_size,
            },
            "versions": {
                "visattn": __version__,
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "lightning")},
            },
        }
        self._write(trainer, RUN_RECORD, {**self.source, **self._before, "fit": part})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the scores of `validate`; those of `fit` are in the logs."""
        if trainer.state.fn == "validate":
            self._write_scores(trainer, "validate", ("validation",))

    def on_test_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Write the scores of `test`."""
        self._write_scores(trainer, "test", trainer.datamodule.test_splits)

    def _write_scores(self, trainer: Any, command: str, splits: Sequence[Any]) -> None:
        scores = {key: float(value) for key, value in sorted(trainer.callback_metrics.items())}
        record: dict[str, Any] = {
            key: value if math.isfinite(value) else None for key, value in scores.items()
        }
        for key, note in trainer.lightning_module.notes.items():
            if isinstance(note, str | float):
                record[key] = note
            else:
                png = isinstance(note, np.ndarray)
                self._write(trainer, f"{key}.{'png' if png else 'json'}", note)
        self._write(trainer, f"{command}.json", record)
        module, datasets = trainer.datamodule, trainer.datamodule.datasets
        shared = module.shared_photos(splits[0], "validation") if command == "test" else ()
        part = {
            "commit": _commit(),
            "date": _now(),
            "checkpoint": Path(str(trainer.ckpt_path)).stem,
            "step": self._step,
            "images": {each: len(datasets[each]) for each in splits if each in datasets},
            "shared": len(shared),
            "data": self.data,
        }
        self._write(trainer, RUN_RECORD, {**self._read(), command: part})

    def _read(self) -> dict[str, Any]:
        file = self.folder / RUN_RECORD
        return read_json(file) if file.is_file() else {}

    def _write(self, trainer: Any, name: str, content: Any) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (
            encode_png(content)
            if isinstance(content, np.ndarray)
            else (json.dumps(content, indent=1, ensure_ascii=False, default=_path) + "\n")
        )
        atomic_write(self.folder / name, text)


def _path(function: Any) -> str:
    """Return the import path of a function, such as a source, as in configs."""
    return f"{function.__module__}.{function.__qualname__}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _seconds() -> tuple[float, float]:
    """Return wall time, and CPU time of this process and of finished workers."""
    return time.monotonic(), sum(os.times()[:4])


@cache
def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")  # Linux; platform.processor() is empty there
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    named = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


@cache
def _commit() -> str | None:
    """Return the commit of the checkout that visattn is imported from, `-dirty` if changed."""
    if not (_PACKAGE.parent / ".git").exists():
        return None
    words = ["git", "-C", str(_PACKAGE.parent), "describe", "--always", "--dirty", "--abbrev=8"]
    try:
        done = subprocess.run([*words, "--exclude=*"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
