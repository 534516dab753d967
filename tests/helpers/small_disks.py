"""A small file system that a test can fill."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a file system of this many kilobytes on a folder, and unmount it afterwards."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk is mounted for it, which needs root")
    try:
        yield folder
    finally:
        # An error that was raised may still hold a file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
