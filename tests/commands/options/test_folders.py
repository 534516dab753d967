"""Folders are made and tried before the work begins; each file has a name of its own."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.commands.options.folders import file_names, prepare_folder, write_whole


def test_a_folder_is_made_with_those_above_it_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_lies_in_a_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("as it was")
    prepare_folder(tmp_path)
    assert (tmp_path / "kept").read_text() == "as it was"


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        tempfile, "mkstemp", refuse
    )  # root may write everywhere, so play the refusal
    with pytest.raises(OSError, match=r"--out .* cannot be written: Permission denied; choose"):
        prepare_folder(tmp_path)


@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_file_is_there_whole_or_as_it_was(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "a.txt", b"first")

    def full(path: Path, _: object) -> None:
        with path.open("ab") as file:
            file.write(b"se")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(tmp_path / "a.txt", b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == b"first"


parts = st.sampled_from(["a", "A", "b", "..", "a_b", "a_2", "A_2", "index", "Index_2"])
files = st.builds(
    lambda folders, stem, suffix: Path(*folders, stem + suffix),
    st.lists(parts, max_size=3),
    parts.filter(lambda part: part != ".."),
    st.sampled_from([".png", ".jpg"]),
)


@given(st.lists(files, min_size=1, max_size=12, unique=True))
def test_every_image_gets_a_file_of_its_own(paths: list[Path]) -> None:
    names = file_names(paths)
    assert list(names) == paths
    assert len({name.casefold() for name in names.values()} - {"index"}) == len(paths)
    assert not any(os.sep in name for name in names.values())


def test_a_name_alone_of_its_kind_is_kept() -> None:
    names = file_names([Path("x/dog.png"), Path("y/cat.png"), Path("z/cat.png")])
    assert list(names.values()) == ["dog", "y_cat", "z_cat"]


def test_a_name_is_one_line_of_print() -> None:
    assert list(file_names([Path("two\nlines\tand\udcff.png")]).values()) == ["two_lines_and_"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="is no file"):
        write_whole(pipe, b"new")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
