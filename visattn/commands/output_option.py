"""Option `--out`: a file or folder."""

import argparse
import os
from pathlib import Path


def output_name(text: str) -> str:
    """Return the name of an output file or folder.

    Raises:
        argparse.ArgumentTypeError: If it is empty, which would be the current directory.

    Example:
        >>> output_name("maps/new")
        'maps/new'
        >>> output_name("")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must name a file or folder, got '': is a variable unset? ...
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(
            f"must name a file or folder, got {text!r}: is a variable unset? The current directory "
            "is ."
        )
    return text


def output_path(text: str) -> Path:
    """Return the path of an output file or folder, as `output_name` accepts it.

    Raises:
        argparse.ArgumentTypeError: If it is empty, or a URL.

    Example:
        >>> output_path("maps/new").as_posix()
        'maps/new'
    """
    if "://" in output_name(text):
        raise argparse.ArgumentTypeError(
            f"must be a path of this machine, got {text!r}: write into a folder, and copy it"
        )
    return Path(text)


def check_writable(folder: Path) -> None:
    """Check that files could be written into a folder, without creating it.

    Args:
        folder: Value of `--out`.

    Raises:
        OSError: If they could not.

    Example:
        >>> check_writable(Path(__file__))
        Traceback (most recent call last):
        OSError: --out ...option.py cannot be written: ...option.py is not a folder; choose ...
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
