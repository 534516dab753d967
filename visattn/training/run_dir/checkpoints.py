"""Checkpoints in a run folder: the newest usable one, and the damaged ones."""

import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from visattn.models.saving.checkpoint import Progress, read_checkpoint, read_progress
from visattn.training.checkpoint.resume_checks import check_resumable


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
    newest, progress = None, Progress(0, 0)
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

    Args:
        files: Checkpoints of the run.
        run: Folder of the run.
        suffix: Suffix of the new name; a number is added if a file of that name exists.

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


def _checkpoint_files(run: Path) -> Iterator[Path]:
    """Yield the files of a run that are named like checkpoints.

    Raises:
        OSError: If a folder or file is not readable, or a broken link.
    """
    scheduled = [path for path in _entries(run) if path.name.startswith("hpc_ckpt_")]
    for file in [*scheduled, *_entries(run / "checkpoints")]:
        if file.suffix != ".ckpt":
            continue
        try:
            if file.is_file():
                with file.open("rb"):
                    pass
            elif file.is_symlink() and not file.exists():
                raise FileNotFoundError(f"a link to {file.readlink()}, which does not exist")
        except OSError as error:
            if not os.path.lexists(file):
                continue  # another process of the run has just renamed it
            raise type(error)(
                f"{file} cannot be read ({error.strerror or error}), and it may be the newest "
                "checkpoint of the run: make it readable, or move it out of the folder"
            ) from error
        yield file


def _entries(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder; none if it does not exist."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError as error:
        if folder.is_symlink():
            raise FileNotFoundError(
                f"{folder} is a link to {folder.readlink()}, which does not exist: repair "
                "or remove the link"
            ) from error
        return []


def _damage(file: Path) -> str:
    """Return why a checkpoint is damaged, or an empty string; all checksums are verified."""
    try:
        check_resumable(read_checkpoint(file), file)
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (ValueError, zipfile.BadZipFile) as error:
        return str(error)
    return f"its part {bad} has a wrong checksum" if bad else ""
