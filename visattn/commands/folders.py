"""Folders that commands write into."""

from pathlib import Path


def prepare_folder(folder: Path) -> None:
    """Make a folder, and find out before the work begins whether it takes files.

    Raises:
        OSError: If it cannot be made or written; the message names `--out`.

    Example:
        >>> prepare_folder(Path(__file__))
        Traceback (most recent call last):
        ...
        OSError: --out ...folders.py cannot be written: File exists; choose another folder
    """
    probe = folder / ".visattn-probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error
