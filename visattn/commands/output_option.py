"""Option `--out`: a folder, or a store for the results of images."""

import argparse
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from visattn.io.safe_text import short_repr
from visattn.io.stores import check_writable_url, is_url


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
        argparse.ArgumentTypeError: If it is empty, or the URL of a store.

    Example:
        >>> output_path("maps/new").as_posix(), output_path("file:///maps/new").as_posix()
        ('maps/new', '/maps/new')
    """
    if isinstance(place := output_place(text), str):
        raise argparse.ArgumentTypeError(
            f"must be a path of this machine, got {short_repr(text)}: only the results of images, "
            "--out of caption, overlay, ask, detect, segment, glimpse and score, go to a "
            "store; write into a folder and copy it"
        )
    return place


def output_place(text: str) -> Path | str:
    """Return an output folder, or the URL of a store for results.

    Raises:
        argparse.ArgumentTypeError: If it is empty, or no store in which files appear whole.

    Example:
        >>> output_place("maps/new").as_posix(), output_place("s3://bucket/maps/")
        ('maps/new', 's3://bucket/maps')
    """
    name = output_name(text)
    if not is_url(name):
        return Path(name)
    parts = urlsplit(name)
    if parts.scheme.lower() == "file":
        return Path(unquote(parts.path))
    try:
        check_writable_url(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name.rstrip("/")


def require_folder(out: Path | str, results: str) -> Path:
    """Return an output folder.

    Args:
        out: Value of `--out`.
        results: What is written there, in the plural.

    Raises:
        ValueError: If it is the URL of a store.

    Example:
        >>> require_folder("s3://bucket/maps", "videos")
        Traceback (most recent call last):
        ValueError: --out s3://bucket/maps is a store, and videos are written into a folder: ...
    """
    if isinstance(out, str):
        raise ValueError(  # noqa: TRY004 (the user's text)
            f"--out {out} is a store, and {results} are written into a folder: name one, and copy "
            "it to the store"
        )
    return out


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
