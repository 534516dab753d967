"""Run folders: how they are made, and their newest usable checkpoint."""

import fcntl
import json
import math
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from visattn.images.encoding import encode_png
from visattn.io.atomic import atomic_write
from visattn.training.checkpoint import (
    Progress,
    check_resumable,
    read_checkpoint,
    read_progress,
)


class ResumePoint(NamedTuple):
    """Newest usable checkpoint of a run."""

    file: Path | None
    """Newest undamaged checkpoint; None if there is none."""
    progress: Progress
    """Progress of training in this checkpoint."""
    unusable: tuple[Path, ...]
    """Files that are damaged or not checkpoints of a run."""


def find_resume_point(run: Path) -> ResumePoint:
    """Return the newest undamaged checkpoint of a run, and log which files were skipped.

    The newest checkpoint is the one with the most steps; modification times only decide between
    equal ones, because copying a folder changes them.

    Args:
        run: Folder of the run; checkpoints are in `checkpoints`, those written for a cluster
            scheduler directly in the folder.

    Raises:
        OSError: If a file cannot be opened, by its permissions or because it is a broken link. It
            may be the newest checkpoint.
    """
    unusable: dict[Path, str] = {}
    candidates: list[tuple[Progress, bool, int, Path]] = []
    for file in _checkpoint_files(run):
        if not file.is_file():
            unusable[file] = "it is not a regular file"
            continue
        try:
            modified = file.stat().st_mtime_ns
            candidates.append((read_progress(file), file.stem == "last", modified, file))
        except ValueError as error:
            unusable[file] = str(error)
    newest = None
    progress = Progress(0, 0)
    # Of equal steps `last.ckpt` first.
    for progress, _, _, file in sorted(candidates, reverse=True):  # noqa: B007 (used below)
        if not (reason := _damage(file)):
            newest = file
            break
        unusable[file] = reason
    if unusable:
        reasons = {file: text.replace(f"{file} ", "it ", 1) for file, text in unusable.items()}
        lines = [f"{file} cannot be used: {reason}" for file, reason in reasons.items()]
        lines += [] if newest else [f"{run} holds no usable checkpoint"]
        rank_zero_info("\n".join(lines))
    return ResumePoint(newest, progress, tuple(unusable))


def set_aside(files: Iterable[Path], run: Path, suffix: str = ".damaged") -> None:
    """Rename checkpoints, so that the run does not overwrite them, and log their new names.

    The new name has a suffix, and a number if a file of that name exists.

    Example:
        >>> folder = getfixture("tmp_path") / "checkpoints"
        >>> folder.mkdir()
        >>> for text in ("rubbish", "more rubbish"):
        ...     _ = (folder / "last.ckpt").write_text(text)
        ...     set_aside([folder / "last.ckpt"], folder.parent)
        >>> sorted(file.name for file in folder.iterdir())
        ['last.ckpt.damaged', 'last.ckpt.damaged-2']
    """
    for file in files:
        # In `checkpoints` also for a scheduler's file, since Lightning resumes from those it finds.
        target = run / "checkpoints" / f"{file.name}{suffix}"
        number = 1
        while os.path.lexists(target):
            number += 1
            target = target.with_name(f"{file.name}{suffix}-{number}")
        target.parent.mkdir(exist_ok=True)
        file.rename(target)
        rank_zero_info(f"{file} is kept as {target}")


def _checkpoint_files(run: Path) -> list[Path]:
    """Return the files of a run that are named like checkpoints."""
    return sorted([*run.glob("hpc_ckpt_*.ckpt"), *run.glob("checkpoints/*.ckpt")])


def _damage(file: Path) -> str:
    """Return why a checkpoint is damaged, or an empty string; all checksums are verified."""
    try:
        check_resumable(read_checkpoint(file), file)
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (ValueError, zipfile.BadZipFile) as error:
        return str(error)
    return f"its part {bad} has a wrong checksum" if bad else ""


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
    """Create the folder of a run, which may have to be new or empty."""
    run.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Of two runs that begin at the same time, one fails: only one can create the folder.
        run.mkdir(exist_ok=not new)
    except FileExistsError as error:
        if _is_used(run):
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
    """Refuse a folder that already holds a run; the message has the option that resumes it."""
    if run.exists() and _is_used(run):
        raise FileExistsError(
            f"{run} already holds a run; choose another --run, remove the folder, or resume "
            f"the run with {resume_option}"
        )


def _is_used(run: Path) -> bool:
    return any(path.name != _LOCK for path in run.iterdir())


class ScoreWriter(Callback):
    """Write the scores of `validate` or `test` to `validate.json` or `test.json` in the run folder.

    Notes of the task are written too: texts and numbers with the scores, images (arrays) as PNG,
    other values, such as lists, to JSON files of their own.
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
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.folder / name, encode_png(pixels))

    def _write_json(self, name: str, content: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        atomic_write(self.folder / name, text + "\n")
