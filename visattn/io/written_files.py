"""Record of the files that visattn wrote into a folder, so that no other file is replaced.

A folder has the record `.visattn`: sets of files, as JSON, each with the SHA-256 of its files. What
has another digest, or none, belongs to the user.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from visattn.io.atomic import (
    atomic_replace_folder,
    atomic_write,
    explained_disk_errors,
    flush,
    remove_partial_files,
    temporary_folder,
)
from visattn.io.messages import format_names
from visattn.io.safe_text import decode_utf8, open_regular_file, parse_json, read_bytes_bounded

RECORD = ".visattn"
_FORMAT = "visattn-files-1"
_MAX_BYTES = 2**28
_READY = ".ready"
_JOURNAL = ".visattn-journal.json"
_READY_NAME = re.compile(r"\..{1,50}\.[0-9a-f]{8}\.ready")
_OF_SYSTEM = (".DS_Store", "Thumbs.db")  # file managers write them everywhere


class WrittenFiles(NamedTuple):
    """The sets of files that visattn wrote into a folder.

    Args:
        sets: Digests of each file, by the name of its set: the present one, and while a file is
            being replaced that of the new content too.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> with replace_files(folder, "panel.png") as part:
        ...     _ = (part / "panel.png").write_text("new")
        >>> written = WrittenFiles.read(folder)
        >>> written.foreign(["panel.png", "missing.png"])
        []
        >>> _ = (folder / "panel.png").write_text("edited")
        >>> written.foreign(["panel.png"])
        ['panel.png']
    """

    folder: Path
    sets: dict[str, dict[str, list[str]]]

    @classmethod
    def read(cls, folder: Path) -> "WrittenFiles":
        """Return the record of a folder; without one nothing in it was written by visattn.

        What a killed process had begun to replace is completed before.
        """
        finish_replacements(folder)
        try:
            content = read_bytes_bounded(folder / RECORD, _MAX_BYTES)
        except (OSError, ValueError):
            return cls(folder, {})
        return cls(folder, parse_sets(content))

    def foreign(self, names: Collection[str]) -> list[str]:
        """Return which of these files exist and were not written by visattn, or changed since."""
        known: dict[str, set[str]] = {}
        for files in self.sets.values():
            for name, digests in files.items():
                known.setdefault(name, set()).update(digests)
        return [
            name
            for name in names
            if os.path.lexists(self.folder / name)
            and (name not in known or _digest(self.folder / name) not in known[name])
        ]

    def check(self, names: Collection[str]) -> None:
        """Refuse to replace files that visattn did not write, or that were changed since.

        Raises:
            FileExistsError: If there are such files.
        """
        if foreign := self.foreign(names):
            raise FileExistsError(
                f"{self.folder} holds {format_names(foreign)}, which this command did not write, "
                "or which changed since: choose another --out, or replace with --overwrite"
            )

    def with_set(self, key: str, digests: Mapping[str, str]) -> "WrittenFiles":
        """Return the record with a set added or replaced; its files may still be the old ones."""
        files = {name: [digest] for name, digest in digests.items()}
        for name, known in self.sets.get(key, {}).items():
            # Until it is replaced, the old content is still known; what the user changed is not.
            if (present := _digest(self.folder / name)) in known:
                files[name] = list(dict.fromkeys([present, *files.get(name, [])]))
        return self._replace(sets={**self.sets, key: files})

    def write(self, folder: Path | None = None) -> None:
        """Write the record."""
        remove_partial_files(folder or self.folder, RECORD)
        atomic_write((folder or self.folder) / RECORD, encode_sets(self.sets))


def parse_sets(content: bytes) -> dict[str, dict[str, list[str]]]:
    """Return the sets of files in a record; none if it is not one of visattn.

    Example:
        >>> parse_sets(encode_sets({"a": {"a.png": ["5f"]}})), parse_sets(b"[]")
        ({'a': {'a.png': ['5f']}}, {})
    """
    try:
        record = parse_json(decode_utf8(content))
        if record["format"] != _FORMAT:
            return {}
        return {
            str(key): {
                str(name): [str(digest) for digest in known] for name, known in files.items()
            }
            for key, files in record["sets"].items()
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def encode_sets(sets: Mapping[str, Any]) -> bytes:
    """Return the content of a record of sets of files."""
    return json.dumps({"format": _FORMAT, "sets": sets}).encode() + b"\n"


@contextmanager
def replace_files(folder: Path, key: str, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose files get their places together when the block succeeds.

    Files that visattn did not write are not replaced. Files of the earlier set of the same name are
    removed if the new set lacks them. A single file is replaced in one step. Several files are
    removed and renamed directly one after the other, by a journal: what a process that is killed
    just then has begun, `finish_replacements` completes, as the next command does in that folder.

    Args:
        folder: Folder of the files; it must exist.
        key: Name of the set, such as that of its main file.

    Raises:
        FileExistsError: If a foreign file would be replaced; nothing is changed.
        OSError: If a file cannot be written.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "mine.txt").write_text("notes")
        >>> with replace_files(folder, "panel.png") as part:
        ...     _ = (part / "mine.txt").write_text("new")
        Traceback (most recent call last):
        FileExistsError: ... holds mine.txt, which this command did not write, or which changed ...
    """
    with temporary_folder(folder / key) as part:
        yield part
        names = _files_of(part)
        digests = {name: _digest(part / name) for name in names}
        for name in names:
            flush(part / name)
        with _folder_lock(folder):
            written = WrittenFiles.read(folder)
            if not overwrite:
                written.check(names)
            old = [name for name in written.sets.get(key, {}) if not written.foreign([name])]
            # A process may be killed between any two steps; no file may then look like the user's:
            #
            #     record knows     files of the set               what the next command finds
            #     old digests      old                            the old set
            #     old and new      old                            the old set
            #     old and new      part is renamed to .ready      the new set: it completes the rest
            #     old and new      old removed, new renamed       the new set: it completes the rest
            #     new digests      new                            the new set
            written.with_set(key, digests).write()
            if len({*names, *old}) == 1:
                (part / names[0]).replace(folder / names[0])
            else:
                _replace_by_journal(part, folder, key, names, old)
            WrittenFiles.read(folder).with_set(key, digests).write()  # without the digests before
        flush(folder)


@contextmanager
def replace_set(
    folder: Path, key: str, *, overwrite: bool = False, own: Sequence[str] = ()
) -> Iterator[Path]:
    """Yield a temporary folder that replaces a folder of its own in one step.

    At each moment the folder holds all old files or all new ones.

    Args:
        folder: The folder; nothing but files that visattn wrote may lie in it.
        key: Name of the set.
        overwrite: Replace changed files and files of unknown origin, if they have such a name.
        own: Patterns of names that the command writes, for `overwrite`.

    Raises:
        FileExistsError: If the folder holds foreign files; nothing is changed.
        OSError: If a file cannot be written.

    Example:
        >>> folder = getfixture("tmp_path") / "scenes"
        >>> for number in (3, 2):
        ...     with replace_set(folder, "scenes") as part:
        ...         for index in range(number):
        ...             (part / f"{index}.png").touch()
        >>> sorted(path.name for path in folder.iterdir())
        ['.visattn', '0.png', '1.png']
    """
    check_own_folder(folder, overwrite=overwrite, own=own)
    with atomic_replace_folder(folder) as part:
        yield part
        digests = {name: _digest(part / name) for name in _files_of(part)}
        WrittenFiles(folder, {}).with_set(key, digests).write(part)
        check_own_folder(folder, overwrite=overwrite, own=own)  # it may have changed meanwhile


def check_own_folder(folder: Path, *, overwrite: bool = False, own: Sequence[str] = ()) -> None:
    """Check that a folder can be replaced as a whole.

    The parameters are those of `replace_set`.

    Raises:
        FileExistsError: If the folder holds files that visattn did not write.
        OSError: If it is the current directory or a mounted disk, or its parent is not writable.

    Example:
        >>> _ = (getfixture("tmp_path") / "notes.txt").write_text("mine")
        >>> check_own_folder(getfixture("tmp_path"))
        Traceback (most recent call last):
        FileExistsError: ... holds notes.txt, which this command did not write; choose a new or ...
    """
    if not folder.exists():
        return
    remove_partial_files(folder)
    fixed = {
        "it is the current directory": folder.samefile("."),
        "it is a mounted disk": os.path.ismount(folder),
        "its parent folder cannot be written": not os.access(folder.absolute().parent, os.W_OK),
    }
    if folder.is_dir() and any(fixed.values()):
        reason = next(reason for reason, holds in fixed.items() if holds)
        raise OSError(
            f"--out {folder} cannot be replaced as a whole: {reason}; choose a folder in it, such "
            f"as {folder / 'data'}"
        )
    passed = {RECORD, *_OF_SYSTEM}
    names = [name for name in _files_of(folder) if name not in passed]
    foreign = WrittenFiles.read(folder).foreign(names)
    replaceable = [name for name in foreign if any(Path(name).match(pattern) for pattern in own)]
    if len(foreign) > len(replaceable):
        others = [name for name in foreign if name not in replaceable]
        raise FileExistsError(
            f"{folder} holds {format_names(others)}, which this command did not write; choose a "
            "new or empty folder"
        )
    if foreign and not overwrite:
        raise FileExistsError(
            f"{folder} holds {format_names(foreign)}, which this command did not write, or which "
            "changed since: choose another folder, or replace all with --overwrite"
        )


def finish_replacements(folder: Path) -> None:
    """Complete what killed processes had begun to replace in a folder.

    Files that were changed since stay. A running process is waited for; where nothing can be locked
    or written, nothing is done.

    Example:
        >>> finish_replacements(getfixture("tmp_path"))
    """
    begun: list[Path] = []
    with suppress(OSError):
        begun = [path for path in folder.iterdir() if _READY_NAME.fullmatch(path.name)]
    for ready in sorted(begun):
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            descriptor = os.open(ready, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _finish(ready, folder)
            finally:
                os.close(descriptor)


def _replace_by_journal(
    part: Path, folder: Path, key: str, names: Sequence[str], old: Sequence[str]
) -> None:
    """Replace files of a folder by those in `part`; from the rename on it will be completed.

    The file that the set is named by goes first and comes last: where it is, all others are.
    """
    present = {
        name: _digest(folder / name)
        for name in sorted({*old, *names}, key=lambda name: (name != key, name))
        if os.path.lexists(folder / name)
    }
    new = sorted(names, key=lambda name: (name == key, name))
    atomic_write(part / _JOURNAL, json.dumps({"new": new, "present": present}))
    ready = part.with_suffix(_READY)
    part.rename(ready)
    flush(folder)
    _finish(ready, folder)


def _finish(ready: Path, folder: Path) -> None:
    """Do what the journal of a folder says and was not done yet, then remove that folder."""
    journal = parse_json(decode_utf8(read_bytes_bounded(ready / _JOURNAL, _MAX_BYTES)))
    # Anyone may have written the journal: its names must not lead out of the folder.
    inside = folder.resolve()
    for name in (*journal["present"], *journal["new"]):
        if not (folder / name).parent.resolve().is_relative_to(inside):
            raise ValueError(f"{name} does not lie in {folder}")
    waiting = [name for name in journal["new"] if os.path.lexists(ready / name)]
    # A new file that has its place may equal the old one: it is not removed.
    done = set(journal["new"]) - set(waiting)
    for name, digest in journal["present"].items():
        if name not in done and _digest(folder / name) == digest:
            (folder / name).unlink(missing_ok=True)
    for name in waiting:
        if not os.path.lexists(folder / name):  # else it is the user's, of after the kill
            (ready / name).replace(folder / name)
    shutil.rmtree(ready)


def _files_of(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, and of all that is neither file nor folder."""
    with explained_disk_errors(folder):
        paths = sorted(folder.rglob("*"))
    return [
        path.relative_to(folder).as_posix()
        for path in paths
        if path.is_symlink() or not path.is_dir()
    ]


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; "" for what is missing, a link or no regular file."""
    if path.is_symlink():
        return ""
    with suppress(OSError, ValueError), open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while its record is read and rewritten."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
