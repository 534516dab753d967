"""Errors of full and read-only disks name the folder and say what to do."""

import errno
import os
from pathlib import Path

import pytest

from visattn.cli import main
from visattn.commands.data import command
from visattn.io.atomic import explained_disk_errors


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, r"no space left: 7 kB are needed and .*B are free; make room or choose"),
        (errno.EDQUOT, "the disk quota is exceeded; remove files of your own, or choose"),
        (errno.EROFS, "the disk is read-only; choose another folder"),
    ],
)
def test_each_error_has_its_advice(number: int, text: str, tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=rf"{text}.*{tmp_path}") as caught,
        explained_disk_errors("another"),  # what is explained already stays
        explained_disk_errors(tmp_path, 7000),
    ):
        raise OSError(number, os.strerror(number)) from None
    assert caught.value.errno == number


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="not yours"), explained_disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "not yours")


def test_what_no_writer_explains_the_command_line_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "torn"))

    monkeypatch.setattr(command, "_write_scenes", full)
    assert main(["data", "scenes", "--out", str(tmp_path / "new")]) == 1
    assert f"visattn: {tmp_path}: no space left: " in capsys.readouterr().err
