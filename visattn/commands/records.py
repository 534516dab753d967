"""Results of commands on disk: a record per result, STEM.json, which is written last.

The record names the files of the result and what they were made from: command, image and settings.
A result is finished if its record says that it was made in the same way, and its files are there.
Files that no record names are not replaced.

A result is replaced in this order, so that a process may be killed at any moment:

    new files, under temporary names
    STEM.json  <- a record without settings, which names the old and the new files
    each file  <- its new content
    STEM.json  <- the record of the new result
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from visattn.commands.files import create_folder
from visattn.io.atomic import atomic_write, flush, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import read_json
from visattn.results.cards import Card

Record = Mapping[str, Any]
"""Values of STEM.json."""
PROVENANCE, CARD = "provenance", "card"
INDEX = "index.html"


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
    """The results of a folder; they can be written within its context.

    Args:
        path: The folder.

    Example:
        >>> origin = Origin("caption", "dog.jpg", {"image_sha256": "1"}, {"k": 5}, ["dog.txt"])
        >>> with ResultFolder(getfixture("tmp_path")) as folder:
        ...     folder.write(Part("dog", {"caption": "a dog"}, {"dog.txt": b"a dog"}), origin)
        >>> folder.finished("dog", origin)["caption"]
        'a dog'
        >>> folder.finished("dog", origin._replace(settings={"k": 3})) is None
        True
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._context = ExitStack()
        self._numbers = itertools.count()
        self._temporary = path

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

    def exists(self, name: str) -> bool:
        """Whether there is a file, a folder or a link."""
        return os.path.lexists(self.path / name)

    def read(self, stem: str) -> Record | None:
        """Return the record of a result; None if there is none of visattn.

        Args:
            stem: Name of the record.
        """
        return read_record(self.path / f"{stem}.json")

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
        if record is None:
            return None
        made = record[PROVENANCE]
        known = (*made["files"], *made.get("absent", ()))
        is_finished = (
            made["settings"] is not None
            and made["command"] == origin.command
            and all(made.get(key) == value for key, value in origin.digests.items())
            and same(made["settings"], origin.settings)
            and {*origin.files} <= {*known}
            and all(map(self.exists, made["files"]))
        )
        return record if is_finished else None

    def foreign(
        self, stem: str, origin: Origin, digests: Callable[[], Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the files that a result may not replace, with the reason.

        Args:
            stem: Name of the record.
            origin: What the result would be made from; its settings and digests are not read.
            digests: Returns the digests of the image.
        """
        file = f"{stem}.json"
        record = self.read(stem)
        if record is None:
            present = [name for name in (file, *origin.files) if self.exists(name)]
            return dict.fromkeys(present, "no record of visattn names it")
        made = record[PROVENANCE]
        if made["command"] != origin.command:
            return {file: f"it holds results of visattn {made['command']}"}
        # An image that changed under its own path is computed again; the results of another image
        # that happens to have this name stay.
        if made["image"] != origin.image and any(
            made.get(key) != value for key, value in digests().items()
        ):
            return {file: f"it holds results of {made['image']}"}
        names = [name for name in origin.files if name not in made["files"] and self.exists(name)]
        return dict.fromkeys(names, "no record of visattn names it")

    def write(self, part: Part, origin: Origin) -> None:
        """Write a result and its record.

        Files of the result that was there before are removed, if it lacks them.

        Args:
            part: The result.
            origin: What it is made from.

        Raises:
            OSError: If a file cannot be written; the earlier result stays then.
        """
        new = {name: self._stage(content) for name, content in part.files.items()}
        before = self.read(part.stem)
        old = [] if before is None else before[PROVENANCE]["files"]
        made: dict[str, Any] = {
            "command": origin.command,
            "image": origin.image,
            **origin.digests,
            "settings": origin.settings,
            "files": [*new],
        }
        if absent := [name for name in origin.files if name not in new]:
            made["absent"] = absent
        card = {} if part.card is None else {CARD: part.card._asdict()}
        file = self.path / f"{part.stem}.json"
        last = self._stage(_encode({**part.record, **card, PROVENANCE: made}))
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = {**made, "settings": None, "files": [*{*old, *new}]}
        atomic_write(file, _encode({PROVENANCE: unfinished}))
        for name, staged in new.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            staged.replace(self.path / name)
        for name in {*old} - {*new}:
            (self.path / name).unlink(missing_ok=True)
        last.replace(file)
        for folder in {(self.path / name).parent for name in new} | {file.parent}:
            flush(folder)  # the names outlive a crash, too

    def _stage(self, content: bytes | Path) -> Path:
        """Write a temporary file, or take one that was written, to the disk."""
        if isinstance(content, Path):
            path = content
        else:
            path = self._temporary / str(next(self._numbers))
            path.write_bytes(content)
        flush(path)
        return path


def read_record(file: Path) -> Record | None:
    """Return the record in a JSON file; None if it is none of visattn.

    Names of its files that lead out of its folder are no names that visattn wrote.

    Example:
        >>> read_record(Path("no_such_record.json")) is None
        True
    """
    try:
        record = read_json(file)
        made = record[PROVENANCE]
        names = [*made["files"], *([record[CARD]["page"]] if CARD in record else [])]
        outside = any(".." in name.split("/") or name.startswith("/") for name in names)
        known = "settings" in made and isinstance(made["command"] + made["image"], str)
        return record if known and not outside else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def record_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files of a folder, and of those below that have no index of their own.

    Example:
        >>> list(record_files(Path("no_such_folder")))
        []
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(parent, name, INDEX).exists()
        ]
        for name in files:
            if name.endswith(".json") and not name.startswith("."):
                yield Path(parent, name)


def refuse_foreign(folder: object, foreign: Mapping[str, str]) -> None:
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


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"
