"""Record of a run, from which tables of results are made: settings, machine, times, commit."""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from visattn import __version__
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import parse_json
from visattn.training.callbacks.checkpoints import BestCheckpoint
from visattn.training.checkpoint import read_progress

_PACKAGE = Path(__file__).resolve().parents[2]
RUN_RECORD = "run.json"
"""File in the folder of a run."""


class RunRecorder(Callback):
    """Write to `run.json` what trained a run, for how long, and what its scores were measured on.

    Its parts are `config` (the name of the config), `seed`, `fit`, and `test` and `validate` with
    the checkpoint and the number of images of the scores. A part holds the commit of a checkout,
    with `-dirty` if its code was changed. Times are those of all sessions of a resumed run, until
    the last checkpoint of each that was killed. No path of the machine is written.

    Args:
        folder: Folder of the run.
        source: While training `config` and `seed`; a resumed run keeps those that it has. While
            scoring `data`, the settings of the data that differ from those of training.
    """

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        self.file = folder / RUN_RECORD
        self.source = source
        self._before: dict[str, Any] = {}
        self._started = self._started_cpu = 0.0
        self._started_at = ""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a session."""
        self._before = self._read()
        self._started, self._started_cpu = time.monotonic(), _cpu_seconds()
        self._started_at = self._before.get("fit", {}).get("started") or _now()
        self._write_fit(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the time that the session has taken so far."""
        self._write_fit(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the time of the session."""
        self._write_fit(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the time until training was interrupted."""
        if trainer.state.fn == "fit":
            self._write_fit(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what `visattn validate` scored."""
        if trainer.state.fn == "validate":
            self._write_score(trainer, ("validation",), trainer.limit_val_batches)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write what `visattn test` scored."""
        splits = getattr(trainer, "datamodule").test_splits  # noqa: B009
        self._write_score(trainer, splits, trainer.limit_test_batches)

    def _write_fit(self, trainer: Trainer, pl_module: LightningModule) -> None:
        past = self._before.get("fit", {})
        best = next(
            (b for b in trainer.checkpoint_callbacks if isinstance(b, BestCheckpoint)), None
        )
        score = None if best is None else best.best_model_score
        part = {
            "commits": list(dict.fromkeys([*past.get("commits", []), _commit()])),
            "started": self._started_at,
            "sessions": past.get("sessions", 0) + 1,
            "steps": trainer.global_step,
            "parameters": sum(
                each.numel() for each in pl_module.get_submodule("model").parameters()
            ),
            "wall_seconds": past.get("wall_seconds", 0) + time.monotonic() - self._started,
            "cpu_seconds": past.get("cpu_seconds", 0) + _cpu_seconds() - self._started_cpu,
            "best": None if best is None or score is None else {best.monitor: float(score)},
            "machine": _machine(trainer),
            "versions": _versions(),
        }
        self._write(trainer, {**self.source, **self._before, "fit": part})

    def _write_score(self, trainer: Trainer, splits: tuple[str, ...], limit: float | None) -> None:
        name = "test" if trainer.state.fn == "test" else "validate"
        source = dict(self.source)
        datasets = getattr(trainer, "datamodule").datasets  # noqa: B009
        images = {
            each: len(datasets[each]) for each in splits if hasattr(datasets[each], "__len__")
        }
        checkpoint = Path(str(trainer.ckpt_path))
        part = {
            "commit": _commit(),
            "date": _now(),
            "checkpoint": checkpoint.stem,
            "step": read_progress(checkpoint).step,
            # Of Lightning's limits 1.0 is everything, and 1 a batch.
            "images": images if isinstance(limit, float) and limit == 1.0 else None,
            "data": source.pop("data", {}),
        }
        self._write(trainer, {**source, **self._read(), name: part})

    def _read(self) -> dict[str, Any]:
        return parse_json(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}

    def _write(self, trainer: Trainer, record: dict[str, Any]) -> None:
        if trainer.is_global_zero and not getattr(trainer, "fast_dev_run", False):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self.file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def leaves(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, with names such as `trainer.max_steps`.

    Empty mappings have none.

    Example:
        >>> dict(leaves({"trainer": {"max_steps": 7}, "seed": [1, 2], "data": {}}))
        {'trainer.max_steps': 7, 'seed': [1, 2]}
    """
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, settings


def changes(settings: Any, base: Any) -> dict[str, Any]:
    """Return the values of settings that differ from those of a base; None for missing ones.

    Of a path from the root, the home or a variable only the name counts, which is the same on each
    machine; a variable alone is any path. A tuple is the list that YAML has for it.

    Example:
        >>> changes({"root": "/here/photos", "seed": 7}, {"root": "${DATA}/photos"})
        {'seed': 7}
        >>> changes({"root": "/here", "size": (60, 60)}, {"root": "${DATA}", "size": [60, 60]})
        {}
    """
    new, old = ({key: _portable(value) for key, value in leaves(part)} for part in (settings, base))
    names = sorted(new.keys() | old.keys())
    return {name: new.get(name) for name in names if not _is_same(new.get(name), old.get(name))}


_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, str) and isinstance(other, str):
        return value == other or any(map(_VARIABLE.fullmatch, (value, other)))
    return value == other


def _portable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_portable(each) for each in value]
    if isinstance(value, dict):
        return {key: _portable(each) for key, each in value.items()}
    is_path = isinstance(value, str) and value.startswith(("/", "~", "$"))
    return Path(value).name if is_path else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # of this process, and of workers that have ended


@cache
def _commit() -> str | None:
    """Return the commit of the checkout that visattn is imported from; None if there is none."""
    if not (_PACKAGE.parent / ".git").exists():
        return None
    words = ["rev-parse", "--short=8", "HEAD"], ["status", "--porcelain", "-uno", "--", "visattn"]
    try:
        commit, changed = (
            subprocess.run(
                ["git", "-C", str(_PACKAGE.parent), *each],
                capture_output=True, text=True, check=True,
            ).stdout.strip()
            for each in words
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _machine(trainer: Trainer) -> dict[str, Any]:
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "device": name,
        "processes": trainer.world_size,
    }


@cache
def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")  # Linux; platform.processor() is empty there
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:3]))
    packages = {name: version(name) for name in ("torch", "lightning")}
    return {"visattn": __version__, "python": python, **packages}
