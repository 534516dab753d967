"""Sets of files: all old or all new at every moment, and nothing foreign is replaced."""

import hashlib
import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from killed_steps import killed_at

from visattn.io import atomic
from visattn.io.atomic import remove_partial_files
from visattn.io.written_files import (
    RECORD,
    WrittenFiles,
    finish_replacements,
    replace_files,
    replace_set,
)


def write_set(folder: Path, names: str, text: str, **options: bool) -> None:
    with replace_set(folder, "letters", own=("?.txt",), **options) as part:
        for name in names:
            (part / f"{name}.txt").write_text(text)


def write_files(folder: Path, names: str, text: str, **options: bool) -> None:
    with replace_files(folder, "letters", **options) as part:
        for name in names:
            (part / f"{name}.txt").write_text(text)


def content(folder: Path) -> dict[str, str]:
    """Return the visible files and their texts."""
    return {path.name: path.read_text() for path in folder.glob("[!.]*")}


def test_a_smaller_set_leaves_no_file_of_the_larger_one(tmp_path: Path) -> None:
    for write in (write_set, write_files):
        folder = tmp_path / write.__name__
        folder.mkdir()
        write(folder, "abc", "old")
        write(folder, "bd", "new")
        assert content(folder) == {"b.txt": "new", "d.txt": "new"}
        assert {path.name for path in folder.iterdir()} == {"b.txt", "d.txt", RECORD}
    assert {path.name for path in tmp_path.iterdir()} == {"write_set", "write_files"}


def test_a_killed_writer_leaves_all_old_or_all_new_at_each_step(tmp_path: Path) -> None:
    folder, step, states = tmp_path / "set", 0, []
    write_set(folder, "abc", "old")
    while killed_at(step, lambda: write_set(folder, "bd", "new")):
        states.append(content(folder))
        step += 1
    old, new = dict.fromkeys(["a.txt", "b.txt", "c.txt"], "old"), {"b.txt": "new", "d.txt": "new"}
    assert [state for state in states if state not in (old, new)] == []
    assert old in states
    assert new in states
    write_set(folder, "bd", "new")
    assert content(folder) == new
    assert [path.name for path in tmp_path.iterdir()] == ["set"]  # what was left is removed


@pytest.mark.parametrize("names", ["a", "bd", "abc"])
def test_what_a_killed_writer_began_is_completed_or_left_undone(tmp_path: Path, names: str) -> None:
    (tmp_path / "notes.md").write_text("mine")
    previous = "a" if names == "a" else "abc"
    old, new = ({f"{name}.txt": text for name in letters} for letters, text in
                ((previous, "old"), (names, "new")))  # fmt: skip
    write_files(tmp_path, previous, "old")
    step, torn, completed = 0, 0, []
    while killed_at(step, lambda: write_files(tmp_path, names, "new")):
        left = {name: text for name, text in content(tmp_path).items() if text != "mine"}
        torn += left not in (old, new)
        # a process that completes it may be killed, too; every step of it, in turns
        inner = step % 3
        while killed_at(inner, lambda: finish_replacements(tmp_path)):
            inner += 3
        completed.append(content(tmp_path))
        write_files(tmp_path, previous, "old")  # what is there is still known as its own
        assert {path.name for path in tmp_path.iterdir()} == {*old, "notes.md", RECORD}
        step += 1
    mine = {"notes.md": "mine"}
    assert [each for each in completed if each not in (old | mine, new | mine)] == []
    assert old | mine in completed
    assert new | mine in completed
    assert (torn > 0) == (names != "a")  # a single file is replaced in one step
    write_files(tmp_path, names, "new")
    assert content(tmp_path) == new | mine


@pytest.mark.parametrize("text", ["old", "new"])
def test_a_killed_replacement_keeps_files_of_after_the_kill(tmp_path: Path, text: str) -> None:
    for step in count():
        write_files(tmp_path, "ab", "old")
        assert killed_at(step, lambda: write_files(tmp_path, "ab", text))
        if content(tmp_path) == {"a.txt": text}:
            break
    (tmp_path / "b.txt").write_text("mine")
    finish_replacements(tmp_path)
    assert content(tmp_path) == {"a.txt": text, "b.txt": "mine"}


def test_a_planted_journal_reaches_nothing_outside(tmp_path: Path) -> None:
    folder, outside = tmp_path / "results", tmp_path / "outside"
    ready = folder / ".a.0a1b2c3d.ready"
    ready.mkdir(parents=True)
    outside.mkdir()
    (outside / "a.txt").write_text("mine")
    (folder / "link").symlink_to(outside)
    digest = hashlib.sha256(b"mine").hexdigest()
    for name in ("../outside/a.txt", "link/a.txt", str(outside / "a.txt")):
        journal = {"new": [], "present": {name: digest}}
        (ready / ".visattn-journal.json").write_text(json.dumps(journal))
        finish_replacements(folder)
        assert (outside / "a.txt").read_text() == "mine"


@pytest.mark.parametrize("write", [write_set, write_files])
def test_changed_and_foreign_files_stay(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "." if write is write_files else tmp_path / "set", "ab", "old")
    folder = tmp_path if write is write_files else tmp_path / "set"
    (folder / "b.txt").write_text("edited")
    with pytest.raises(
        FileExistsError, match=r"holds b\.txt, which this command did not write, or"
    ):
        write(folder, "abc", "new")
    assert content(folder) == {"a.txt": "old", "b.txt": "edited"}
    write(folder, "bc", "new", overwrite=True)
    assert content(folder) == {"b.txt": "new", "c.txt": "new"}
    (folder / RECORD).write_text("torn")
    with pytest.raises(FileExistsError, match=r"holds b\.txt"):
        write(folder, "b", "newer")


def test_a_folder_with_foreign_files_is_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_set(folder, "ab", "old")
    (folder / "results").mkdir()
    (folder / "results" / "a.html").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"holds results/a\.html.*a new or empty folder"):
            write_set(folder, "a", "new", overwrite=overwrite)
    assert content(folder / "results") == {"a.html": "mine"}


def test_a_file_that_comes_while_a_set_is_written_stays(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_set(folder, "a", "old")

    def write() -> None:
        with replace_set(folder, "letters") as part:
            (part / "a.txt").write_text("new")
            (folder / "mine.md").write_text("mine")

    with pytest.raises(FileExistsError, match=r"holds mine\.md"):
        write()
    assert content(folder) == {"a.txt": "old", "mine.md": "mine"}


def test_a_link_is_not_a_written_file(tmp_path: Path) -> None:
    write_files(tmp_path, "a", "old")
    (tmp_path / "a.txt").rename(tmp_path / "kept")
    (tmp_path / "a.txt").symlink_to(tmp_path / "kept")
    assert WrittenFiles.read(tmp_path).foreign(["a.txt"]) == ["a.txt"]


def test_the_current_directory_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"it is the current directory; choose a folder in it"):
        write_set(Path(), "a", "new")
    monkeypatch.undo()
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    with pytest.raises(OSError, match="it is a mounted disk; choose a folder in it"):
        write_set(tmp_path, "a", "new")


def test_a_file_system_that_cannot_exchange_folders_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(22, "it cannot be replaced in one step (Invalid argument)")

    monkeypatch.setattr(atomic, "_exchange", fails)
    (tmp_path / "set").mkdir()
    write_set(tmp_path / "set", "ab", "old")  # an empty folder needs no exchange
    with pytest.raises(OSError, match="cannot be replaced in one step"):
        write_set(tmp_path / "set", "c", "new")
    assert content(tmp_path / "set") == {"a.txt": "old", "b.txt": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_failed_set_keeps_the_old_one(tmp_path: Path) -> None:
    write_set(tmp_path / "set", "ab", "old")
    with pytest.raises(IsADirectoryError), replace_set(tmp_path / "set", "letters") as part:
        part.write_text("a file in place of the folder")
    assert content(tmp_path / "set") == {"a.txt": "old", "b.txt": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_temporary_files_of_running_writers_stay(tmp_path: Path) -> None:
    (tmp_path / ".a.bin.0a1b2c3d.part").touch()
    (tmp_path / ".a.bin.0a1b2c3d.part.mp4").touch()
    (tmp_path / ".backup.part").touch()
    with atomic.atomic_replace(tmp_path / "b.bin") as part:
        remove_partial_files(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {".backup.part", part.name}
        part.write_bytes(b"new")
    assert {path.name for path in tmp_path.iterdir()} == {".backup.part", "b.bin"}
