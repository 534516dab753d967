"""The checkpoints in the folder of a run: which is the newest, and which cannot be used."""

import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from visattn.training.checkpoint.reader import Progress, read_checkpoint, read_progress
from visattn.training.checkpoint.resume_checks import check_resumable


class ResumePoint(NamedTuple):
    """Where a run can be resumed from."""

    file: Path | None
    """The newest checkpoint that is whole; None if there is none."""
    progress: Progress
    """How far training had come there."""
    unusable: tuple[Path, ...]
    """Checkpoints that are damaged, or hold something else."""


def find_resume_point(run: Path) -> ResumePoint:
    """Return the newest checkpoint of a run that can be read whole, and say which were skipped.

    The newest one is the one after the most steps, whatever the dates of the files: copying a
    folder changes these.

    Args:
        run: Its folder. Checkpoints of a scheduler lie there, the others in `checkpoints`.

    Raises:
        OSError: If a file cannot be read though it may be whole: this user may not, or it is a
            link to what is not there. It may be the newest one.
    """
    unusable: dict[Path, str] = {}
    found: list[tuple[Progress, bool, int, Path]] = []
    for file in _checkpoint_files(run):
        if not file.is_file():
            unusable[file] = "it is no file"
            continue
        try:
            dated = file.stat().st_mtime_ns  # decides between equals
            found.append((read_progress(file), file.stem == "last", dated, file))
        except ValueError as error:
            unusable[file] = str(error)
    newest, progress = None, Progress(0, 0)
    for progress, _, _, file in sorted(found, reverse=True):  # noqa: B007 (that of the newest)
        if not (reason := _damage(file)):
            newest = file
            break
        unusable[file] = reason
    if unusable:
        reasons = {file: why.replace(f"{file} ", "it ", 1) for file, why in unusable.items()}
        lines = [f"{file} cannot be used: {reason}" for file, reason in reasons.items()]
        lines += [] if newest else [f"nothing in {run} can be gone on from"]
        rank_zero_info("\n".join(lines))
    return ResumePoint(newest, progress, tuple(unusable))


def set_aside(files: Iterable[Path], run: Path, ending: str = ".damaged") -> None:
    """Rename checkpoints, so that the run does not overwrite them; say how they are called now.

    Args:
        files: Of this run.
        run: Its folder.
        ending: Of the new name; a number follows where that name is taken.

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
        # Beside the others also for a scheduler's: Lightning resumes from what looks like one.
        target = run / "checkpoints" / f"{file.name}{ending}"
        number = 1
        while os.path.lexists(target):
            number += 1
            target = target.with_name(f"{file.name}{ending}-{number}")
        target.parent.mkdir(exist_ok=True)
        file.rename(target)
        rank_zero_info(f"{file} is kept as {target}")


def _checkpoint_files(run: Path) -> Iterator[Path]:
    """Yield what is called a checkpoint in a run.

    Raises:
        OSError: If a folder or a file cannot be read by this user, or is a link that leads nowhere.
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
                raise FileNotFoundError(f"a link to {file.readlink()}, which is not there")
        except OSError as error:
            if not os.path.lexists(file):
                continue  # another process of the run has just set it aside
            raise type(error)(
                f"{file} cannot be read ({error.strerror or error}), and it may be the newest "
                "checkpoint of the run: make it readable, or move it out of the folder"
            ) from error
        yield file


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder; nothing if there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError as error:
        if folder.is_symlink():
            raise FileNotFoundError(
                f"{folder} is a link to {folder.readlink()}, which is not there: mend the link, or "
                "remove it"
            ) from error
        return []


def _damage(file: Path) -> str:
    """Return what is wrong with a checkpoint, or nothing; all of it is read, sums and all."""
    try:
        check_resumable(read_checkpoint(file), file)
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip()
    except (ValueError, zipfile.BadZipFile) as error:
        return str(error)
    return f"its part {bad} is not what was written" if bad else ""
