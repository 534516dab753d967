"""Option `--dry-run`: print the inputs and the files that a command would write."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.output_streams import print_lines

if TYPE_CHECKING:  # torch is imported when a command runs, not for its help
    from torch import nn


def print_dry_run(reads: Iterable[str], folder: Path | None, files: Sequence[str]) -> int:
    """Print a line for each input and each file that a command would write; return 0.

    Args:
        reads: Descriptions of the inputs.
        folder: Output folder; None if no files would be written to one.
        files: Names of the output files; absolute ones do not lie in the folder.

    Raises:
        OSError: If the folder cannot be written.

    Example:
        >>> print_dry_run(["2 images"], None, [])
        dry run: nothing is written
        reads   2 images
        writes  nothing without --out DIR
        0
    """
    lines = [f"reads   {line}" for line in reads]
    if folder is not None:
        check_writable(folder)
    paths = [Path(folder or "") / name for name in files if folder or Path(name).is_absolute()]
    lines += [f"writes  {path}{' (overwrites)' * path.exists()}" for path in paths]
    if not paths:
        lines.append("writes  nothing without --out DIR")
    print_lines(["dry run: nothing is written", *lines])
    return 0


def describe_images(paths: Sequence[Path]) -> str:
    """Return number, file types and total size of images.

    Example:
        >>> describe_images([Path("no/a.png"), Path("no/b.JPG")])
        '2 images: 1 .jpg, 1 .png; 0.0 MB'
    """
    counts = Counter(path.suffix.lower() for path in paths)
    types = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(counts.items()))
    size = sum(map(_file_size, paths)) / 10**6
    return f"{len(paths):,} image{'' if len(paths) == 1 else 's'}: {types}; {size:,.1f} MB"


def _file_size(path: Path) -> int:
    """Return the bytes of a regular file; 0 for anything else and for unreadable paths."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def describe_model(model: "nn.Module", source: object) -> str:
    """Return source, class and number of parameters of a model.

    Args:
        model: The model.
        source: Its file or name.
    """
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{source}: {type(model).__name__}, {count:,} parameters"


def check_writable(folder: Path) -> None:
    """Check that files could be written into a folder, without creating it.

    Args:
        folder: Value of `--out`.

    Raises:
        OSError: If they could not.

    Example:
        >>> check_writable(Path(__file__))
        Traceback (most recent call last):
        OSError: --out ...dry_run.py cannot be written: ...dry_run.py is not a folder; choose ...
    """
    absolute = folder.absolute()
    nearest = next(path for path in (absolute, *absolute.parents) if path.exists())
    problem = ""
    if not nearest.is_dir():
        problem = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem = f"{nearest} is not writable"
    if problem:
        raise OSError(f"--out {folder} cannot be written: {problem}; choose another folder")
