"""What a command would read and write, said without doing it."""

import argparse
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.output_streams import print_lines

if TYPE_CHECKING:  # torch is loaded when a command runs, not for its help
    from torch.nn import Module

_ENDINGS = 6  # that a line names


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add `--dry-run`.

    Args:
        parser: Of the command.
    """
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be read and written, and stop"
    )


def foresee(reads: Iterable[str], folder: Path | None, files: Sequence[str]) -> int:
    """Print what a command would read and write; return 0.

    Args:
        reads: A line for each thing that is read.
        folder: Into which files would go; none where nothing is written.
        files: Their names.

    Raises:
        OSError: If the folder could not be written.

    Example:
        >>> foresee(["2 images"], None, [])
        dry run: nothing is written
        reads   2 images
        writes  no file; --out DIR would
        0
    """
    lines = [f"reads   {line}" for line in reads]
    lines += _written(folder, files) if folder is not None else ["writes  no file; --out DIR would"]
    print_lines(["dry run: nothing is written", *lines])
    return 0


def told_images(paths: Sequence[Path]) -> str:
    """Return how many images there are, of which kinds, and how large their files are.

    Args:
        paths: Of images.

    Example:
        >>> told_images([Path("no/a.png"), Path("no/b.JPG")])
        '2 images: 1 .jpg, 1 .png; 0.0 MB'
    """
    kinds = Counter(path.suffix.lower() for path in paths)
    named = ", ".join(f"{count:,} {ending}" for ending, count in sorted(kinds.items()))
    size = sum(map(_file_size, paths)) / 10**6
    return f"{len(paths):,} image{'' if len(paths) == 1 else 's'}: {named}; {size:,.1f} MB"


def _file_size(path: Path) -> int:
    """Return the bytes of a file; 0 of what is none, or cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def told_model(model: "Module", source: object) -> str:
    """Return what a model is, and where it is from.

    Args:
        model: Its parameters are counted.
        source: A file or a name.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{source}: {type(model).__name__}, {count:,} parameters"


def foresee_folder(folder: Path) -> None:
    """Find out whether a folder could take files, without making it.

    Args:
        folder: That of `--out`.

    Raises:
        OSError: If it could not.

    Example:
        >>> foresee_folder(Path(__file__))
        Traceback (most recent call last):
        OSError: --out ...dry_runs.py could not be written: ...dry_runs.py is no folder; choose ...
    """
    whole = folder.absolute()
    nearest = next(path for path in (whole, *whole.parents) if path.exists())
    wrong = ""
    if not nearest.is_dir():
        wrong = f"{nearest} is no folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        wrong = f"{nearest} takes no files"
    if wrong:
        raise OSError(f"--out {folder} could not be written: {wrong}; choose another folder")


def _written(folder: Path, files: Sequence[str]) -> list[str]:
    """Return the lines about what would be written."""
    foresee_folder(folder)
    endings = Counter(Path(name).suffix for name in files)
    named = [f"{count:,} {ending}" for ending, count in endings.most_common(_ENDINGS)]
    more = ["..."] if len(endings) > _ENDINGS else []
    state = "" if folder.is_dir() else " (new)"
    plural = "" if len(files) == 1 else "s"
    lines = [f"writes  {len(files):,} file{plural} into {folder}{state}: {', '.join(named + more)}"]
    there = sum((folder / name).exists() for name in files)
    if there:
        verb = "is" if there == 1 else "are"
        lines.append(f"        {there:,} of these names {verb} taken there")
    return lines
