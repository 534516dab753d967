"""Folders are made and tried before the work begins."""

from pathlib import Path

import pytest

from visattn.commands.folders import prepare_folder


def test_a_folder_is_made_with_those_above_it_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_lies_in_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    prepare_folder(tmp_path)
    assert (tmp_path / "kept").read_text() == "as it was"


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)  # root may write everywhere, so play the refusal
    with pytest.raises(OSError, match=r"--out .* cannot be written: Permission denied; choose"):
        prepare_folder(tmp_path)
