"""Results of commands on disk: a record per result that owns its files.

The record of a result, STEM.json, names the files of the result with their digests, and what they
were made from: command, image and settings. A result is finished if its record says that it was
made in the same way and every file has its digest. A file that no record owns is never replaced.

A result is replaced in this order, so that a process may be killed at any moment:

    new files, under temporary names
    STEM.json  <- a record that owns the old and the new files, marked as unfinished
    each file  <- its new content
    STEM.json  <- the record of the new result
"""

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from visattn.commands.files import create_folder, folder_lock
from visattn.commands.model_option import file_digest
from visattn.io.atomic import explained_disk_errors, flush, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import read_json
from visattn.results.cards import Card

Record = Mapping[str, Any]
"""Values of STEM.json."""
PROVENANCE, CARD = "provenance", "card"
_UNFINISHED = "unfinished"
_NO_RECORD = "no record of visattn owns it"


@dataclass(frozen=True)
class Part:
    """A result with a record of its own: that of an image, or that of an image and a method.

    Args:
        stem: Name of the record, without suffix.
        record: Values of JSON.
        files: Content of each file, by its path in the folder; or a temporary file to be moved
            there.
        card: For the index; None if another part of the image has it.
    """

    stem: str
    record: dict[str, Any]
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    card: Card | None = None


class Origin(NamedTuple):
    """What a result is made from.

    Args:
        command: The command.
        image: Path of the image, as it was typed.
        digests: What tells whether the image changed.
        settings: Model and options, as plain values.
        files: Files that were requested; the result may lack some, such as that of an empty map.
    """

    command: str
    image: str
    digests: Mapping[str, Any]
    settings: Mapping[str, Any]
    files: Sequence[str] = ()


class ResultFolder(AbstractContextManager["ResultFolder"]):
    """A folder of results; results can be written within its context.

    Args:
        path: The folder.

    Example:
        >>> origin = Origin("caption", "dog.jpg", {"image_sha256": "1"}, {"k": 5}, ["dog.txt"])
        >>> with ResultFolder(getfixture("tmp_path")) as folder:
        ...     folder.write(Part("dog", {"caption": "a dog"}, {"dog.txt": b"a dog"}), origin)
        >>> folder.finished("dog", origin)["caption"]
        'a dog'
        >>> _ = (folder.path / "dog.txt").write_text("edited")
        >>> folder.finished("dog", origin), folder.foreign("dog", origin)
        (None, {'dog.txt': 'it changed since'})
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[tuple[object, ...], str] = {}
        self._context = ExitStack()
        self._numbers = itertools.count()
        self._temporary: Path | None = None

    def __enter__(self) -> "ResultFolder":
        """Create the folder.

        Raises:
            OSError: If it cannot be written.
        """
        create_folder(self.path)
        self._temporary = self._context.enter_context(temporary_folder(self.path / "visattn"))
        return self

    def __exit__(self, *_exception: object) -> None:
        """Remove temporary files."""
        self._context.close()

    def read(self, stem: str) -> Record | None:
        """Return the record of a result; None if there is none of visattn.

        Args:
            stem: Name of the record.
        """
        try:
            record = read_json(self.path / f"{stem}.json")
        except (OSError, ValueError):
            return None
        known = isinstance(record, dict) and _is_provenance(record.get(PROVENANCE))
        return record if known else None

    def finished(
        self,
        stem: str,
        origin: Origin,
        same: Callable[[Any, Any], bool] = lambda saved, settings: saved == settings,
    ) -> Record | None:
        """Return the record of a result if it was made in the same way and is complete, else None.

        Args:
            stem: Name of the record.
            origin: What the result would be made from now.
            same: Compares the settings of the record with those of the origin.
        """
        record = self.read(stem)
        made = record[PROVENANCE] if record is not None else {}
        if not made or _UNFINISHED in made or made["command"] != origin.command:
            return None
        if any(made.get(key) != value for key, value in origin.digests.items()):
            return None
        if not same(made.get("settings"), origin.settings):
            return None
        files = made["files"]
        if not {*origin.files} <= {*files, *made.get("absent", ())}:
            return None
        complete = all(self.digest(name) == digest for name, digest in files.items())
        return record if complete else None

    def foreign(self, stem: str, origin: Origin) -> dict[str, str]:
        """Return the files that a result may not replace, with the reason.

        Args:
            stem: Name of the record.
            origin: What the result would be made from; its settings are not read.
        """
        file = f"{stem}.json"
        present = [name for name in (file, *origin.files) if os.path.lexists(self.path / name)]
        if not present:
            return {}
        record = self.read(stem)
        if record is None:
            if self._is_older(file):
                return {}
            return dict.fromkeys(present, _NO_RECORD)
        made = record[PROVENANCE]
        if made["command"] != origin.command:
            return {file: f"it holds results of visattn {made['command']}"}
        changed = any(made.get(key) != value for key, value in origin.digests.items())
        # An image that changed under its own path is computed again; the results of another image
        # that happens to have this name stay.
        if changed and made.get("image") != origin.image:
            return {file: f"it holds results of {made.get('image')}"}
        own = made["files"]
        reasons: dict[str, str] = {}
        # Without the record, which is the first if it is there: it has no digest of itself.
        for name in present[present[0] == file :]:
            if name not in own:
                reasons[name] = _NO_RECORD
            elif _UNFINISHED not in made and self.digest(name) != own[name]:
                reasons[name] = "it changed since"
        return reasons

    def check(self, origins: Mapping[str, Origin]) -> None:
        """Refuse to replace files that visattn did not write.

        Args:
            origins: What each result would be made from, by its stem.

        Raises:
            FileExistsError: If there are such files.
        """
        foreign: dict[str, str] = {}
        for stem, origin in origins.items():
            foreign |= self.foreign(stem, origin)
        refuse_foreign(self.path, foreign)

    def write(self, part: Part, origin: Origin) -> None:
        """Write a result and its record.

        Files of the result that was there before are removed, if it lacks them.

        Args:
            part: The result.
            origin: What it is made from.

        Raises:
            OSError: If a file cannot be written; the earlier result stays then.
        """
        file = f"{part.stem}.json"
        with explained_disk_errors(self.path):
            new = {name: self._prepare(content) for name, content in part.files.items()}
            made: dict[str, Any] = {
                "command": origin.command,
                "image": origin.image,
                **origin.digests,
                "settings": origin.settings,
                "files": {name: file_digest(new[name]) for name in new},
            }
            if absent := [name for name in origin.files if name not in new]:
                made["absent"] = absent
            card = {} if part.card is None else {CARD: part.card._asdict()}
            last = self._prepare(_encode({**part.record, **card, PROVENANCE: made}))
            folders = dict.fromkeys((self.path / name).parent for name in (file, *new))
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            with folder_lock(self.path):  # two processes may write the same result
                before = self.read(part.stem)
                old = dict(before[PROVENANCE]["files"]) if before is not None else {}
                unfinished = {**made, _UNFINISHED: True, "files": {**old, **made["files"]}}
                self._prepare(_encode({PROVENANCE: unfinished})).replace(self.path / file)
                for name, path in new.items():
                    path.replace(self.path / name)
                for name in old.keys() - new.keys():
                    if self.digest(name) == old[name]:
                        (self.path / name).unlink(missing_ok=True)
                last.replace(self.path / file)
            # Now the new names are on the disk, too.
            for folder in folders:
                flush(folder)

    def _is_older(self, file: str) -> bool:
        """Whether a record is one that does not name its files yet, and owns all of its name."""
        try:
            record = read_json(self.path / file)
            made = record.get(PROVENANCE, record)
            return "image_sha256" in made and (made is not record or "drawing" in record)
        except (OSError, ValueError, TypeError, AttributeError):
            return False

    def _prepare(self, content: bytes | Path) -> Path:
        """Write a temporary file, or take one that was written, to the disk."""
        if self._temporary is None:
            raise ValueError("results are written within the context of their folder")
        if isinstance(content, Path):
            path = content
        else:
            path = self._temporary / str(next(self._numbers))
            path.write_bytes(content)
        flush(path)
        return path

    def digest(self, name: str) -> str:
        """Return the digest of a file; "" if it is no regular file.

        A file is read once, until it changes.

        Args:
            name: Its path in the folder.
        """
        path = self.path / name
        try:
            status = path.lstat()
            key = (name, status.st_ino, status.st_size, status.st_mtime_ns)
            if key not in self._digests:
                self._digests[key] = file_digest(path)
        except (OSError, ValueError):
            return ""
        return self._digests[key]


def refuse_foreign(folder: Path, foreign: Mapping[str, str]) -> None:
    """Refuse to replace files.

    Args:
        folder: Their folder.
        foreign: The files, with the reason.

    Raises:
        FileExistsError: If there are any.
    """
    if foreign:
        names = format_names([*foreign])
        reason = next(iter(foreign.values()))
        raise FileExistsError(
            f"--out {folder} holds {names}, which would be replaced: {reason}; choose another "
            "folder, or replace with --overwrite"
        )


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are read back from JSON; paths and other objects become strings.

    Example:
        >>> plain_values({"size": (3, 4), "file": Path("a")})
        {'size': [3, 4], 'file': 'a'}
    """
    return json.loads(json.dumps(values, default=str))


def _is_provenance(value: object) -> bool:
    """Whether an entry of a JSON file is that of a record of visattn."""
    if not isinstance(value, dict):
        return False
    files = value.get("files")
    return isinstance(value.get("command"), str) and isinstance(files, dict)


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"
