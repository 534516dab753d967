"""Atomic file writing: after any failure the path holds the old content."""

import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from visattn.io.atomic import atomic_replace, atomic_write, flush, remove_partial_files
from visattn.training.checkpoint import AtomicCheckpointIO


def fail(file: Path, error: BaseException) -> None:
    with atomic_replace(file) as part:
        part.write_bytes(b"ne")
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_new_content_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    atomic_write(file, b"old")
    with atomic_replace(file) as part:
        part.write_bytes(b"new")
        assert part.parent == tmp_path
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, RuntimeError])
def test_failed_write_keeps_the_old_content(tmp_path: Path, kind: type[BaseException]) -> None:
    file = tmp_path / "a.bin"
    atomic_write(file, b"old")
    with pytest.raises(kind, match="halfway"):
        fail(file, kind("halfway"))
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def killed(file: Path) -> None:
    child = os.fork()
    if not child:
        with atomic_replace(file) as part:
            part.write_bytes(b"ne")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def halfway(file: Path) -> None:
    """Write as far as a process that is killed then."""
    writer = atomic_replace(file)
    writer.__enter__().write_bytes(b"ne")
    UNFINISHED.append(writer)  # or its end would clean up


UNFINISHED: list[object] = []


@pytest.mark.parametrize("write", [halfway, pytest.param(killed, marks=pytest.mark.slow)])
def test_killed_writer_keeps_the_old_content_and_leaves_a_removable_part(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    file = tmp_path / "a.bin"
    atomic_write(file, b"old")
    write(file)
    assert file.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2
    remove_partial_files(tmp_path)  # it may be that of a running writer
    assert len(names(tmp_path)) == 2
    remove_partial_files(tmp_path, older_than=0)
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    atomic_write(tmp_path / "a.bin", b"new")
    os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == mode


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), RuntimeError("torch.save")])
def test_full_disk_is_reported_by_the_name_of_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visattn.io.atomic.is_disk_full", lambda _: True)
    file = tmp_path / "a.bin"
    atomic_write(file, b"old")
    with pytest.raises(OSError, match=rf": '{file}'") as caught:
        fail(file, error)
    assert caught.value.errno == errno.ENOSPC
    assert (file.read_bytes(), names(tmp_path)) == (b"old", ["a.bin"])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1,000 kilobytes."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk is mounted for it, which needs root")
    yield tmp_path
    # An error that was raised may still hold a file open.
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.slow  # it mounts a disk
def test_full_disk_keeps_the_old_content_and_checkpoint(disk: Path) -> None:
    writer = AtomicCheckpointIO()
    atomic_write(disk / "a.bin", b"o" * 400_000)
    with pytest.raises(OSError, match=rf"No space left on device: '{disk}/a\.bin'"):
        atomic_write(disk / "a.bin", b"n" * 800_000)
    assert (disk / "a.bin").read_bytes() == b"o" * 400_000
    assert names(disk) == ["a.bin"]
    (disk / "a.bin").unlink()
    writer.save_checkpoint({"weights": torch.zeros(100_000)}, disk / "last.ckpt")
    with pytest.raises(OSError, match=r"No space left on device: .*last\.ckpt"):
        writer.save_checkpoint({"weights": torch.ones(200_000)}, disk / "last.ckpt")
    assert names(disk) == ["last.ckpt"]
    assert not writer.load_checkpoint(disk / "last.ckpt")["weights"].any()


def test_a_directory_that_cannot_be_synced_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "fsync", refuse)
    flush(tmp_path)  # as on some file systems
    with pytest.raises(OSError, match="Invalid argument"):
        flush(tmp_path / "a")


def test_special_files_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        atomic_write(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["pipe"]
