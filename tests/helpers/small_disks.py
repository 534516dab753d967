"""A small file system that a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


def _mount(folder: Path, kilobytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    return os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode


def _mountable() -> bool:
    with TemporaryDirectory() as folder:
        mounted = _mount(Path(folder), 64)
        if mounted:
            subprocess.run(["umount", folder], check=True)
    return mounted


needs_small_disk = pytest.mark.skipif(
    not _mountable(), reason="a small disk is mounted for it, which needs root"
)


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a file system of this many kilobytes on a folder, and unmount it afterwards."""
    folder.mkdir()
    if not _mount(folder, kilobytes):
        raise RuntimeError(f"no disk could be mounted on {folder}")
    try:
        yield folder
    finally:
        # An error that was raised may still hold a file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
