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

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from visattn.commands.outputs import Output, Staged, content_digest, open_output
from visattn.io.messages import format_names
from visattn.results.cards import Card

Record = Mapping[str, Any]
"""Values of STEM.json."""
PROVENANCE, CARD = "provenance", "card"
IDENTITY = "image_identity"
"""Key of what a store says of an image: if it is the same, the image need not be read."""
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
    """The results of a folder or a store; they can be written within its context.

    A store cannot rename, so that each file of a new result is uploaded once, its record first: a
    result is finished when all files of its record are there. One that is replaced is marked as
    unfinished before, as in a folder.

    Args:
        out: The place; or a folder.
        overwrite: Whether files that a store has already are uploaded again.

    Example:
        >>> origin = Origin("caption", "dog.jpg", {"image_sha256": "1"}, {"k": 5}, ["dog.txt"])
        >>> with ResultFolder(getfixture("tmp_path")) as folder:
        ...     folder.write(Part("dog", {"caption": "a dog"}, {"dog.txt": b"a dog"}), origin)
        >>> folder.finished("dog", origin)["caption"]
        'a dog'
        >>> folder.out.write("dog.txt", b"edited")
        >>> folder.finished("dog", origin), folder.foreign("dog", origin)
        (None, {'dog.txt': 'it changed since'})
    """

    def __init__(self, out: Output | Path, *, overwrite: bool = False) -> None:
        self.out = open_output(out) if isinstance(out, Path) else out
        self.overwrite = overwrite

    def __enter__(self) -> "ResultFolder":
        """Create the folder.

        Raises:
            OSError: If it cannot be written.
        """
        self.out.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove temporary files."""
        self.out.__exit__(None, None, None)

    def read(self, stem: str) -> Record | None:
        """Return the record of a result; None if there is none of visattn.

        Args:
            stem: Name of the record.
        """
        try:
            record = self.out.read_json(f"{stem}.json")
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
        if _is_changed(made, origin):
            return None
        if not same(made.get("settings"), origin.settings):
            return None
        files = made["files"]
        if not {*origin.files} <= {*files, *made.get("absent", ())}:
            return None
        complete = all(self.out.holds(name, digest) for name, digest in files.items())
        return record if complete else None

    def foreign(self, stem: str, origin: Origin) -> dict[str, str]:
        """Return the files that a result may not replace, with the reason.

        Args:
            stem: Name of the record.
            origin: What the result would be made from; its settings are not read.
        """
        file = f"{stem}.json"
        present = [name for name in (file, *origin.files) if self.out.exists(name)]
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
        # An image that changed under its own path is computed again; the results of another image
        # that happens to have this name stay.
        if _is_changed(made, origin) and made.get("image") != origin.image:
            return {file: f"it holds results of {made.get('image')}"}
        own = made["files"]
        reasons: dict[str, str] = {}
        # Without the record, which is the first if it is there: it has no digest of itself.
        for name in present[present[0] == file :]:
            if name not in own:
                reasons[name] = _NO_RECORD
            elif _UNFINISHED not in made and not self.out.holds(name, own[name]):
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
        refuse_foreign(self.out, foreign)

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
        out = self.out
        with out.errors():
            new = {name: out.stage(content) for name, content in part.files.items()}
            made: dict[str, Any] = {
                "command": origin.command,
                "image": origin.image,
                **origin.digests,
                "settings": origin.settings,
                "files": {name: content_digest(new[name]) for name in new},
            }
            if absent := [name for name in origin.files if name not in new]:
                made["absent"] = absent
            card = {} if part.card is None else {CARD: part.card._asdict()}
            record = {**part.record, **card, PROVENANCE: made}
            last = out.stage(_encode(record))
            with out.lock():  # two processes may write the same result
                before = self.read(part.stem)
                if out.renames or not self._upload_new(file, last, new, before == record):
                    self._replace(file, last, new, made, before)
            # Now the new names are on the disk, too.
            out.flush((file, *new))

    def _upload_new(
        self, file: str, record: Staged, new: Mapping[str, Staged], unchanged: bool
    ) -> bool:
        """Upload a result if none is there, or complete one that was interrupted."""
        present = {name for name in (file, *new) if self.out.exists(name)}
        if present and (self.overwrite or not unchanged):
            return False
        for name, content in {file: record, **new}.items():
            if name not in present:
                self.out.place(content, name)
        return True

    def _replace(
        self,
        file: str,
        record: Staged,
        new: Mapping[str, Staged],
        made: Mapping[str, Any],
        before: Record | None,
    ) -> None:
        """Replace a result, which is unfinished meanwhile."""
        old = dict(before[PROVENANCE]["files"]) if before is not None else {}
        unfinished = {**made, _UNFINISHED: True, "files": {**old, **made["files"]}}
        self.out.place(self.out.stage(_encode({PROVENANCE: unfinished})), file)
        for name, content in new.items():
            self.out.place(content, name)
        for name in old.keys() - new.keys():
            if self.out.holds(name, old[name]):
                self.out.remove(name)
        self.out.place(record, file)

    def _is_older(self, file: str) -> bool:
        """Whether a record is one that does not name its files yet, and owns all of its name."""
        try:
            record = self.out.read_json(file)
            made = record.get(PROVENANCE, record)
            return "image_sha256" in made and (made is not record or "drawing" in record)
        except (OSError, ValueError, TypeError, AttributeError):
            return False


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


def _is_changed(made: Mapping[str, Any], origin: Origin) -> bool:
    """Whether the content of an image has changed; a copy of it has another identity."""
    digests = origin.digests.items()
    return any(made.get(key) != value for key, value in digests if key != IDENTITY)


def _is_provenance(value: object) -> bool:
    """Whether an entry of a JSON file is that of a record of visattn."""
    if not isinstance(value, dict):
        return False
    files = value.get("files")
    return isinstance(value.get("command"), str) and isinstance(files, dict)


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"
