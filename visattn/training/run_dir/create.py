"""Run folders, which hold the config, checkpoints, logs and scores: numbering, locking, scores."""

import fcntl
import io
import json
import math
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from lightning import Callback, LightningModule, Trainer
from PIL import Image

from visattn.io.atomic import atomic_write

_LOCK = ".lock"


def next_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of a new run: `root/name/1`, then 2, and so on.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> (folder / "scenes" / "7").mkdir(parents=True)
        >>> next_run_dir("scenes", folder).name
        '8'
    """
    return root / name / str(max(_numbers(root / name), default=0) + 1)


def latest_run_dir(name: str, root: Path = Path("runs")) -> Path:
    """Return the folder of the newest run; without any, that of the first run.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for number in ("7", "12"):
        ...     (folder / "scenes" / number).mkdir(parents=True)
        >>> latest_run_dir("scenes", folder).name
        '12'
    """
    return root / name / str(max(_numbers(root / name), default=1))


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdigit()]


def create_run_dir(run: Path, *, new: bool) -> None:
    """Create the folder of a run.

    Args:
        run: The folder.
        new: Whether the folder must be new or empty.

    Raises:
        FileExistsError: If it must be new, and another run created it at the same time.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    try:
        run.mkdir(exist_ok=not new)
    except FileExistsError as error:
        if any(run.iterdir()):
            raise FileExistsError(
                f"{run} was created by another run at the same time; rerun the command"
            ) from error


def lock_run_dir(run: Path) -> TextIO:
    """Lock the folder of a run for this process, until the returned file is closed.

    Raises:
        BlockingIOError: If another process is training in it.
    """
    file = (run / _LOCK).open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # data loader workers do not inherit it
    except (BlockingIOError, PermissionError) as error:
        file.close()
        raise BlockingIOError(
            f"another process is training in {run}; end it first, or choose another --run"
        ) from error
    return file


def require_empty_run_dir(run: Path, resume_option: str) -> None:
    """Refuse a folder that already holds a run.

    Args:
        run: Folder of the new run.
        resume_option: Option that resumes the existing run, for the message.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    if run.exists() and any(run.iterdir()):
        raise FileExistsError(
            f"{run} already holds a run; choose another --run, remove the folder, or resume "
            f"the run with {resume_option}"
        )


class ScoreWriter(Callback):
    """Write the scores of `validate` or `test` to `validate.json` or `test.json` in the run folder.

    Notes of the task are written too: texts and numbers with the scores, images (arrays) as PNG,
    other values, such as lists, to JSON files of their own.

    Args:
        folder: Folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the scores of `validate`; during `fit` the logs hold them."""
        if trainer.state.fn == "validate":
            self._write(trainer, "validate.json")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the scores of `test`."""
        self._write(trainer, "test.json")

    def _write(self, trainer: Trainer, name: str) -> None:
        if not trainer.is_global_zero or getattr(trainer, "fast_dev_run", False):
            return
        scores = {key: float(value) for key, value in sorted(trainer.callback_metrics.items())}
        record: dict[str, Any] = {
            key: value if math.isfinite(value) else None for key, value in scores.items()
        }
        for key, note in getattr(trainer.lightning_module, "notes", {}).items():
            if isinstance(note, str | float):
                record[key] = note
            elif isinstance(note, np.ndarray):
                self._write_png(f"{key}.png", note)
            else:
                self._write_json(f"{key}.json", note)
        self._write_json(name, record)

    def _write_png(self, name: str, pixels: np.ndarray) -> None:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "png")
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.folder / name, buffer.getvalue())

    def _write_json(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        atomic_write(self.folder / name, text + "\n")
